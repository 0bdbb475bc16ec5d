"""GSPO: the ratio is the sequence's (arXiv 2507.18071).

    rho_i = exp(mean over the loss tokens of sample i of log pi - log pi_old)      on every token of sample i
    loss = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)), mean over each sequence, then over sequences

A token has its own gradient under its sequence's ratio (GSPO-token), which for the one advantage of a sequence is the
gradient of the sequence's ratio and allows for rewards per turn too. Whole sequences are clipped.

| published | ours | why |
|---|---|---|
| clip 3e-4 / 4e-4 | 3e-4 / 4e-4 | |
| advantages of GRPO | as grpo | |
| on-policy | ``decoupled`` true | see [``policy_gradient``](#policy_gradient); its weight stays the token's |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.aggregation import Aggregation
from areal_lit_algorithms.pieces.policy_losses import clipped_ratio
from areal_lit_algorithms.pieces.ratios import sequence_log_ratio

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.token_batch import TokenBatch
    from areal_lit.types import Metric


class GSPO(GRPO):
    """Clip whole sequences by the geometric mean of their tokens' ratios.

    Args:
        clip_low: the sequence's ratio is kept above 1 - clip_low.
        clip_high: the sequence's ratio is kept below 1 + clip_high.
        aggregation: token_mean, sequence_mean, sequence_sum, group_mean or constant.
    """

    def __init__(
        self,
        *,
        clip_low: float = 3e-4,
        clip_high: float = 4e-4,
        aggregation: Aggregation = "sequence_mean",
        **grpo: Any,
    ) -> None:
        super().__init__(clip_low=clip_low, clip_high=clip_high, aggregation=aggregation, **grpo)

    def loss(self, logprob_T: Tensor, old_T: Tensor, batch: TokenBatch) -> tuple[Tensor, tuple[Metric, ...]]:
        log_ratio_T = sequence_log_ratio(logprob_T - old_T, batch)
        return clipped_ratio(
            log_ratio_T, batch["advantage"], batch["loss_mask"],
            clip_low=self.clip_low, clip_high=self.clip_high, clip_dual=self.clip_dual,
        )  # fmt: skip
