"""SAPO: a soft gate instead of a clip (arXiv 2511.20347).

    gate(rho) = (4 / tau) sigmoid(tau (rho - 1)),     tau = tau_pos for A > 0, else tau_neg
    loss = -A gate(rho), mean over each sequence, then over sequences

The gate's slope is 1 at rho = 1 and falls off smoothly on both sides, a little faster for negative advantages. The gate
is its own trust region around the old policy, so there is no off-policy weight: SAPO is not decoupled.

| published | ours | why |
|---|---|---|
| tau 1.0 / 1.05 | 1.0 / 1.05 | |
| advantages of GRPO | as grpo | |
| old policy recomputed | ``old`` proximal | |
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from areal_lit_algorithms.pieces.aggregation import Aggregation
from areal_lit_algorithms.pieces.policy_losses import soft_gate
from areal_lit_algorithms.policy_gradient import PolicyGradient

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.token_batch import TokenBatch
    from areal_lit.types import Metric


class SAPO(PolicyGradient):
    """Let a token count less, and never nothing, the further its ratio is from 1.

    Args:
        tau_pos: how fast the gate closes for positive advantages.
        tau_neg: how fast for negative ones.
        aggregation: token_mean, sequence_mean, sequence_sum, group_mean or constant.
    """

    def __init__(
        self,
        *,
        tau_pos: float = 1.0,
        tau_neg: float = 1.05,
        aggregation: Aggregation = "sequence_mean",
        **policy_gradient: Any,
    ) -> None:
        super().__init__(decoupled=False, aggregation=aggregation, **policy_gradient)
        if not (0 < tau_pos < math.inf and 0 < tau_neg < math.inf):
            raise ValueError(f"tau_pos and tau_neg must be finite and > 0, got {tau_pos} and {tau_neg}")
        self.tau_pos = tau_pos
        self.tau_neg = tau_neg

    def loss(self, logprob_T: Tensor, old_T: Tensor, batch: TokenBatch) -> tuple[Tensor, tuple[Metric, ...]]:
        return soft_gate(
            logprob_T - old_T, batch["advantage"], batch["loss_mask"], tau_pos=self.tau_pos, tau_neg=self.tau_neg
        )
