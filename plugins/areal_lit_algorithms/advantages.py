"""Rewards to advantages: centring and scaling over groups or the whole step.

Shapes: S samples of the step, G groups. Inside everything is float64; results have the input's dtype.

Samples that are unscored or have no loss token enter no statistic and get 0. So does a sample that is the
only valid one of its group when the group's mean is subtracted (nothing to compare it with), and every
member of a group of equal values (zero variance). ``GroupCounts`` says how often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from areal_lit.types import Metric

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.token_batch import TokenBatch

MeanLevel = Literal["group", "batch", "none"]
StdLevel = Literal["group", "batch", "none", "group_rms", "batch_rms"]


def valid_samples(batch: TokenBatch) -> Tensor:
    """Samples that may vote: scored, with at least one loss token; bool [S]."""
    return batch["scored"] & (batch.loss_tokens_S > 0)


def normalise(
    x_S: Tensor,
    batch: TokenBatch,
    *,
    mean_level: MeanLevel = "group",
    std_level: StdLevel = "group",
    leave_one_out: bool = False,
    unbiased_std: bool = True,
    eps: float = 1e-6,
) -> Tensor:
    """``(x - mean) / (std + eps)`` with each statistic over the sample's group or over the batch, [S].

    Args:
        leave_one_out: the mean is that of the others. The deviation stays the whole set's: that of the
            others would vanish, and the quotient explode, for the one sample that differs.
        unbiased_std: divide by n - 1; sets of one have deviation 0.
        std_level: ``*_rms`` divides by the root mean square about 0, and is the only scale that goes
            with ``mean_level`` none.
    """
    if mean_level == "none" and std_level in ("group", "batch"):
        raise ValueError(
            f"std_level {std_level!r} without a mean divides by the root mean square; "
            f"say {std_level + '_rms'!r} if that is meant, or choose a mean_level"
        )
    x = x_S.double()
    valid = valid_samples(batch)
    x = x.where(valid, x.new_zeros(()))
    result = x
    if mean_level != "none":
        sets = _sets(batch, mean_level)
        total, count = _sum(x, sets), _sum(valid.double(), sets)
        mean = (total - x) / (count - 1).clamp(min=1) if leave_one_out else total / count.clamp(min=1)
        result = (x - mean).where(valid & (count > 1) & ~_is_constant(x, valid, sets), 0.0)
    if std_level != "none":
        result = result / (_scale(x, valid, batch, std_level, unbiased_std) + eps)
    return result.to(x_S.dtype)


def _scale(x: Tensor, valid: Tensor, batch: TokenBatch, std_level: StdLevel, unbiased: bool) -> Tensor:
    """Each sample's standard deviation or root mean square, [S]; two passes, so nothing cancels."""
    sets = _sets(batch, "group" if std_level.startswith("group") else "batch")
    count = _sum(valid.double(), sets)
    if std_level.endswith("_rms"):
        return (_sum(x * x, sets) / count.clamp(min=1)).sqrt()
    deviation = (x - _sum(x, sets) / count.clamp(min=1)).where(valid, 0.0)
    return (_sum(deviation * deviation, sets) / (count - int(unbiased)).clamp(min=1)).sqrt()


def _sets(batch: TokenBatch, level: Literal["group", "batch"]) -> Tensor:
    """Index of the set whose statistics apply to each sample, int64 [S]."""
    index_S = batch.group_index_S
    return index_S if level == "group" else index_S.new_zeros(()).expand_as(index_S)


def _sum(x_S: Tensor, sets_S: Tensor) -> Tensor:
    """Each sample's sum over its set, [S]."""
    return x_S.new_zeros(x_S.shape).index_add(0, sets_S, x_S)[sets_S]


def _is_constant(x_S: Tensor, valid_S: Tensor, sets_S: Tensor) -> Tensor:
    """Whether all valid values of a sample's set are equal, bool [S]."""
    infinity = float("inf")
    low = x_S.new_full(x_S.shape, infinity).scatter_reduce(0, sets_S, x_S.where(valid_S, infinity), "amin")
    high = x_S.new_full(x_S.shape, -infinity).scatter_reduce(0, sets_S, x_S.where(valid_S, -infinity), "amax")
    return (low >= high)[sets_S]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """How many groups of a step teach nothing, and why."""

    groups: int
    zero_variance: int
    single: int
    empty: int

    def metrics(self) -> tuple[Metric, ...]:
        """Fractions of the step's groups: all rewards equal, one valid sample left, none left."""
        named = {"zero_variance_groups": self.zero_variance, "single_groups": self.single, "empty_groups": self.empty}
        return tuple(Metric(name=f"train/{name}", sum=float(n), count=float(self.groups)) for name, n in named.items())


def count_groups(x_S: Tensor, batch: TokenBatch) -> GroupCounts:
    """Count the groups by what their valid values allow."""
    valid, sets = valid_samples(batch), batch.group_index_S
    num_groups = int(sets.max()) + 1
    count_G = x_S.new_zeros(num_groups).index_add(0, sets, valid.to(x_S.dtype))
    constant_G = valid.new_zeros(num_groups).index_put((sets,), _is_constant(x_S.double(), valid, sets))
    return GroupCounts(
        groups=num_groups,
        zero_variance=int((constant_G & (count_G > 1)).sum()),
        single=int((count_G == 1).sum()),
        empty=int((count_G == 0).sum()),
    )
