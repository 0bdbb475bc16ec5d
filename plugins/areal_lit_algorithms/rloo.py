"""RLOO: REINFORCE with the other samples' mean as baseline (arXiv 2402.14740).

    A_i = r_i - mean of r_j, j != i in G
    loss = -A log pi, summed over each sequence, mean over sequences

With ``clipped`` the loss is PPO's instead, for data that is old or used more than once. A sample alone in its group
has nothing to be compared with: advantage 0.

| published | ours | why |
|---|---|---|
| REINFORCE, sequences as single actions | ``clipped`` false, ``aggregation`` sequence_sum | |
| KL in the reward | ``kl_weight`` 0 | a verifiable reward needs no anchor |
| on-policy | ``decoupled`` true | see [``policy_gradient``](#policy_gradient) |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.aggregation import Aggregation
from areal_lit_algorithms.pieces.normalisation import Normaliser

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.token_batch import TokenBatch
    from areal_lit.types import Metric


class RLOO(GRPO):
    """Raise each sample's log-prob by how much better it is than the others of its group.

    Args:
        clipped: take PPO's clipped ratio instead of the plain log-prob; the clips act only then.
        reward_norm: what is subtracted from rewards, and what divides them.
        aggregation: token_mean, sequence_mean, sequence_sum, group_mean or constant.
    """

    def __init__(
        self,
        *,
        clipped: bool = False,
        reward_norm: Normaliser = Normaliser(leave_one_out=True, std_level="none"),
        aggregation: Aggregation = "sequence_sum",
        **grpo: Any,
    ) -> None:
        super().__init__(reward_norm=reward_norm, aggregation=aggregation, **grpo)
        self.clipped = clipped

    def loss(self, logprob_T: Tensor, old_T: Tensor, batch: TokenBatch) -> tuple[Tensor, tuple[Metric, ...]]:
        if self.clipped:
            return super().loss(logprob_T, old_T, batch)
        return -batch["advantage"] * logprob_T, ()
