"""GRPO: group-relative advantages with a clipped ratio (arXiv 2402.03300).

    A_i = (r_i - mean(r_G)) / (std(r_G) + eps)          on every token of sample i of group G
    loss = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)),    rho = pi / pi_old

Groups of equal rewards, groups with one valid sample and unscored samples have advantage 0 and are counted. Where a
workflow gives rewards per turn, each is compared with those of all turns of the group, and a token gets what its turn
and later ones earned (the paper's process supervision).

| published | ours | why |
|---|---|---|
| clip unstated; 0.2 in packages | 0.2 | |
| mean over each sequence, then over sequences | ``aggregation`` token_mean | no length bias within a batch (DAPO) |
| KL 0.04, k3 in the loss | ``kl_weight`` 0; k2 if on | no anchor needed; k2's gradient is the reverse KL's |
| deviation unspecified; packages differ in ``eps`` (trl 1e-4, verl 1e-6) | n - 1, ``eps`` 1e-6 | as verl |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal_lit_algorithms.pieces.policy_losses import check_clips, clipped_ratio
from areal_lit_algorithms.policy_gradient import PolicyGradient

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.token_batch import TokenBatch
    from areal_lit.types import Metric


class GRPO(PolicyGradient):
    """Centre each reward on its group, then take a clipped policy-gradient step.

    Args:
        clip_low: the ratio is kept above 1 - clip_low.
        clip_high: the ratio is kept below 1 + clip_high.
        clip_dual: bounds the loss of a negative advantage at clip_dual times it; null is off.
    """

    def __init__(
        self,
        *,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        clip_dual: float | None = None,
        **policy_gradient: Any,
    ) -> None:
        super().__init__(**policy_gradient)
        check_clips(clip_low, clip_high, clip_dual)
        self.clip_low = clip_low
        self.clip_high = clip_high
        self.clip_dual = clip_dual

    def loss(self, logprob_T: Tensor, old_T: Tensor, batch: TokenBatch) -> tuple[Tensor, tuple[Metric, ...]]:
        return clipped_ratio(
            logprob_T - old_T, batch["advantage"], batch["loss_mask"],
            clip_low=self.clip_low, clip_high=self.clip_high, clip_dual=self.clip_dual,
        )  # fmt: skip
