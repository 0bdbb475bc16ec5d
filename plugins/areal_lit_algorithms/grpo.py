"""GRPO: group-relative advantages with a clipped ratio (arXiv 2402.03300).

Shapes: T packed tokens, S samples of the step.

| published | ours | why |
|---|---|---|
| mean over each sequence, then over sequences | ``aggregation`` token_mean | no length bias within a batch (DAPO) |
| KL 0.04 | ``kl_weight`` 0 | see ``policy_gradient`` |
| deviation unspecified; packages differ in ``eps`` (trl 1e-4, verl 1e-6) | n - 1, ``eps`` 1e-6 | as verl |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from areal_lit_algorithms.advantages import normalise
from areal_lit_algorithms.policy_gradient import PolicyGradient
from areal_lit_algorithms.policy_loss import check_clips, clipped_ratio

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.token_batch import TokenBatch
    from areal_lit.trainer import Trainer
    from areal_lit.types import Metric


class GRPO(PolicyGradient):
    """Centre each reward on its group, then take a clipped policy-gradient step.

    Args:
        clip_low: the ratio is kept above 1 - clip_low.
        clip_high: the ratio is kept below 1 + clip_high.
        clip_dual: bounds the loss of a negative advantage at clip_dual times it; null is off.
        scale_by_std: divide by the group's standard deviation; off is Dr. GRPO's advantage.
        eps: added to the standard deviation.
    """

    def __init__(
        self,
        *,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        clip_dual: float | None = None,
        scale_by_std: bool = True,
        eps: float = 1e-6,
        **policy_gradient: Any,
    ) -> None:
        super().__init__(**policy_gradient)
        check_clips(clip_low, clip_high, clip_dual)
        self.clips = {"clip_low": clip_low, "clip_high": clip_high, "clip_dual": clip_dual}
        self.scale_by_std = scale_by_std
        self.eps = eps

    def rules(self, trainer: Trainer) -> Iterable[str]:
        yield from super().rules(trainer)
        if trainer.rollout.samples_per_group < 2:
            yield (
                f"rollout.samples_per_group is {trainer.rollout.samples_per_group}, but a sample is compared with the "
                "others of its group: sample at least 2 per prompt"
            )

    def advantages(self, batch: TokenBatch) -> Tensor:
        return normalise(batch["reward"], batch, std_level="group" if self.scale_by_std else "none", eps=self.eps)

    def loss(self, log_ratio_T: Tensor, batch: TokenBatch) -> tuple[Tensor, tuple[Metric, ...]]:
        return clipped_ratio(log_ratio_T, batch["advantage"], batch["loss_mask"], **self.clips)
