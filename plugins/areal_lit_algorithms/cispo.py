"""CISPO: clip the weight, not the gradient (arXiv 2506.13585).

    loss = -sg(clip(rho, 1 - clip_low, 1 + clip_high)) A log pi

Every token keeps a gradient, also the rare ones whose ratio runs away first; only its weight is bounded.

| published | ours | why |
|---|---|---|
| no lower bound | ``clip_low`` 1, which bounds nothing | |
| upper bound tuned; 4 to 5 in later work (arXiv 2510.13786) | ``clip_high`` 4: a weight of 5 | |
| one weight, to behaviour | ``decoupled`` true: two weights | see [``policy_gradient``](#policy_gradient) |
| mean over all tokens, advantages of GRPO | as grpo | |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal_lit_algorithms.pieces.policy_losses import check_clips, clipped_weight
from areal_lit_algorithms.policy_gradient import PolicyGradient

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.token_batch import TokenBatch
    from areal_lit.types import Metric


class CISPO(PolicyGradient):
    """REINFORCE with the ratio, kept within bounds, as weight.

    Args:
        clip_low: the weight is at least 1 - clip_low.
        clip_high: the weight is at most 1 + clip_high.
    """

    def __init__(self, *, clip_low: float = 1.0, clip_high: float = 4.0, **policy_gradient: Any) -> None:
        super().__init__(**policy_gradient)
        check_clips(clip_low, clip_high)
        self.clip_low = clip_low
        self.clip_high = clip_high

    def loss(self, logprob_T: Tensor, old_T: Tensor, batch: TokenBatch) -> tuple[Tensor, tuple[Metric, ...]]:
        return clipped_weight(
            logprob_T, logprob_T - old_T, batch["advantage"], batch["loss_mask"],
            clip_low=self.clip_low, clip_high=self.clip_high,
        )  # fmt: skip
