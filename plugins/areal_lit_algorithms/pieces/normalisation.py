"""Centring and scaling over groups or the whole batch: of rewards, and of advantages.

Shapes: N things to be compared: samples, turns or tokens. Inside everything is float64; results have the input's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.token_batch import TokenBatch
    from areal_lit.trainer import Trainer

MeanLevel = Literal["group", "batch", "none"]
StdLevel = Literal["group", "batch", "none", "group_rms", "batch_rms"]


def valid_samples(batch: TokenBatch) -> Tensor:
    """Samples that may vote: scored, with at least one loss token; bool [S]."""
    return batch["scored"] & (batch.loss_tokens_S > 0)


@dataclass(frozen=True, kw_only=True)
class Normaliser:
    """``(x - mean) / (std + eps)``, each statistic over the value's group or over the batch.

    What is not valid votes nowhere and gets 0. So does a value that is the only valid one of a set whose mean is
    subtracted or whose deviation divides (nothing to compare it with), and every member of such a set of equal values
    (zero variance).

    Args:
        mean_level: whose mean is subtracted: ``group``, ``batch`` or ``none``.
        std_level: whose standard deviation divides: ``group``, ``batch`` or ``none``. ``group_rms`` and ``batch_rms``
            divide by the root mean square about 0, and are the only scales that go with ``mean_level`` none. A group's
            with the batch's mean has no bound: where a group hardly differs, its distance from the batch is magnified.
        leave_one_out: the mean is that of the others. The deviation stays the whole set's: that of the others would
            vanish, and the quotient explode, for the one value that differs.
        unbiased_std: divide by n - 1; sets of one have deviation 0.
        eps: added to the standard deviation.
    """

    mean_level: MeanLevel = "group"
    std_level: StdLevel = "group"
    leave_one_out: bool = False
    unbiased_std: bool = True
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.mean_level == "none" and self.std_level in ("group", "batch"):
            raise ValueError(
                f"std_level {self.std_level!r} without a mean divides by the root mean square; "
                f"say {self.std_level + '_rms'!r} if that is meant, or choose a mean_level"
            )
        if self.leave_one_out and self.mean_level == "none":
            raise ValueError("leave_one_out is about the mean, got mean_level 'none'; choose group or batch")
        if not 0 <= self.eps < math.inf:
            raise ValueError(f"eps must be finite and >= 0, got {self.eps}")

    def __call__(self, x_N: Tensor, group_N: Tensor, valid_N: Tensor) -> Tensor:
        """The normalised values, [N].

        Args:
            group_N: which group each belongs to; any integers.
            valid_N: which of them may vote, bool.
        """
        x = x_N.double().where(valid_N, 0.0)
        group_N = group_N.unique(return_inverse=True)[1]  # type: ignore[no-untyped-call]
        result = x
        if self.mean_level != "none":
            sets = _sets(group_N, self.mean_level)
            total, count = sum_over(x, sets), sum_over(valid_N.double(), sets)
            left_out = 1 if self.leave_one_out else 0
            mean = (total - left_out * x) / (count - left_out).clamp(min=1)
            result = (x - mean).where(valid_N & (count > 1) & ~is_constant(x, valid_N, sets), 0.0)
        if self.std_level != "none":
            scale = self._scale(x, group_N, valid_N)
            result = (result / (scale + self.eps)).where(scale != 0, 0.0)
        return result.to(x_N.dtype)

    def rules(self, trainer: Trainer) -> Iterable[str]:
        """Why samples would have no others to be compared with, if so."""
        if "group" in (self.mean_level, self.std_level) and trainer.rollout.samples_per_group < 2:
            yield (
                f"rollout.samples_per_group is {trainer.rollout.samples_per_group}, but a sample is compared with the "
                "others of its group: sample at least 2 per prompt, or choose an algorithm that compares none (ppo, "
                "reinforce_pp)"
            )

    def samples(self, x_S: Tensor, batch: TokenBatch) -> Tensor:
        """The normalised values of samples, 0 for those that may not vote; [S]."""
        return self(x_S, batch["group"], valid_samples(batch))

    def tokens(self, x_T: Tensor, batch: TokenBatch) -> Tensor:
        """The normalised values of loss tokens, each with a vote of its own, 0 elsewhere; [T]."""
        return self(x_T, batch.to_tokens(batch["group"]), batch["loss_mask"])

    def _scale(self, x_N: Tensor, group_N: Tensor, valid_N: Tensor) -> Tensor:
        """Each value's standard deviation or root mean square, [N]; two passes, so nothing cancels."""
        sets = _sets(group_N, "group" if self.std_level.startswith("group") else "batch")
        count = sum_over(valid_N.double(), sets)
        if self.std_level.endswith("_rms"):
            return (sum_over(x_N * x_N, sets) / count.clamp(min=1)).sqrt()
        is_spread = valid_N & ~is_constant(x_N, valid_N, sets)  # a mean of equal values may be off in the last digit
        deviation = (x_N - sum_over(x_N, sets) / count.clamp(min=1)).where(is_spread, 0.0)
        return (sum_over(deviation * deviation, sets) / (count - int(self.unbiased_std)).clamp(min=1)).sqrt()


def sum_over(x_N: Tensor, sets_N: Tensor) -> Tensor:
    """Each value's sum over its set, [N]."""
    return x_N.new_zeros(x_N.shape).index_add(0, sets_N, x_N)[sets_N]


def is_constant(x_N: Tensor, valid_N: Tensor, sets_N: Tensor) -> Tensor:
    """Whether all valid values of a value's set are equal, bool [N]."""
    infinity = float("inf")
    low = x_N.new_full(x_N.shape, infinity).scatter_reduce(0, sets_N, x_N.where(valid_N, infinity), "amin")
    high = x_N.new_full(x_N.shape, -infinity).scatter_reduce(0, sets_N, x_N.where(valid_N, -infinity), "amax")
    return (low >= high)[sets_N]


def _sets(group_N: Tensor, level: Literal["group", "batch"]) -> Tensor:
    """Index of the set whose statistics apply to each value, int64 [N]."""
    return group_N if level == "group" else group_N.new_zeros(()).expand_as(group_N)
