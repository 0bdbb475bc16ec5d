"""The numbers that say what a step's data and the algorithm did with each other. docs/reading_metrics.md reads them.

Shapes: T packed tokens, S samples of the step, G groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from areal_lit.token_batch import masked_metric
from areal_lit.types import Metric
from areal_lit_algorithms.pieces.kl import estimate
from areal_lit_algorithms.pieces.normalisation import is_constant, valid_samples
from areal_lit_algorithms.pieces.ratios import log_ratio, ratio
from areal_lit_algorithms.pieces.shaping import Shaping

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.token_batch import TokenBatch


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
    constant_G = valid.new_zeros(num_groups).index_put((sets,), is_constant(x_S.double(), valid, sets))
    return GroupCounts(
        groups=num_groups,
        zero_variance=int((constant_G & (count_G > 1)).sum()),
        single=int((count_G == 1).sum()),
        empty=int((count_G == 0).sum()),
    )


def moments(name: str, x_N: Tensor) -> tuple[Metric, ...]:
    """Mean, standard deviation and extremes of a step's values as ``train/NAME_mean`` and so on; none of nothing."""
    if not x_N.numel():
        return ()
    x_N = x_N.double()
    return (
        Metric(name=f"train/{name}_mean", sum=float(x_N.sum()), count=float(x_N.numel())),
        Metric(name=f"train/{name}_std", sum=float(x_N.std(correction=0))),
        Metric(name=f"train/{name}_max", sum=float(x_N.max()), reduction="max"),
        Metric(name=f"train/{name}_min", sum=float(x_N.min()), reduction="min"),
    )


def reward_metrics(shaping: Shaping, batch: TokenBatch) -> list[Metric]:
    """Groups that teach nothing, and moments of each part of the reward and of rewards of turns.

    The shaped reward is a part where it differs from the raw one.
    """
    parts, shaped_S = shaping.components(batch), shaping(batch)
    if shaping != Shaping():
        parts["shaped"] = shaped_S
    valid_S, turn_T = valid_samples(batch), batch["turn_scored"] & batch["loss_mask"]
    metrics = [metric for name, x_S in parts.items() for metric in moments(f"reward_{name}", x_S[valid_S])]
    return [*count_groups(shaped_S, batch).metrics(), *metrics, *moments("reward_turn", batch["turn_reward"][turn_T])]


def without_step_scores(batch: TokenBatch) -> Metric:
    """The share of trained samples that have no score of a turn or step."""
    is_trained_S = batch.loss_tokens_S > 0
    is_scored_S = batch.segment_sum((batch["turn_scored"] & batch["loss_mask"]).long()) > 0
    num_bare, num_trained = int((is_trained_S & ~is_scored_S).sum()), int(is_trained_S.sum())
    return Metric(name="train/without_step_scores", sum=float(num_bare), count=float(num_trained))


def ratio_metrics(name: str, logprob_T: Tensor, old_T: Tensor, mask_T: Tensor) -> tuple[Metric, ...]:
    """How far a policy is from an older one: mean and largest ratio (``ratio_NAME``, ``_max``), divergence ``kl_NAME``.

    The divergence is k3 of KL(old, policy) on the tokens that are trained, as if the older policy had drawn them.
    """
    log_T = log_ratio(logprob_T.detach().double(), old_T.detach(), mask_T)
    return (
        masked_metric(f"ratio_{name}", ratio(log_T), mask_T),
        masked_metric(f"ratio_{name}_max", ratio(log_T), mask_T, "max"),
        masked_metric(f"kl_{name}", estimate(-log_T, "k3"), mask_T),
    )


def effective_sample_size(metrics: Mapping[str, Metric]) -> list[Metric]:
    """The share of tokens that a step's off-policy weights are worth, ``(sum w)^2 / (n sum w^2)``; 0 if all are 0.

    Args:
        metrics: of the whole step; without off-policy weights in them there is nothing to say.
    """
    weight, square = (metrics.get(f"train/off_policy_weight{end}") for end in ("", "_square"))
    if weight is None or square is None or not weight.count:
        return []
    share = weight.value**2 / square.value if square.value > 0 else 0.0
    return [Metric(name="train/effective_sample_size", sum=share)]


def explained_variance(value_N: Tensor, return_N: Tensor) -> float:
    """``1 - Var(return - value) / Var(return)``: 1 for a perfect critic, 0 for a constant one; NaN of equal returns."""
    spread = float(return_N.double().var(correction=0)) if return_N.numel() else 0.0
    if not spread > 0:
        return float("nan")
    return 1 - float((return_N.double() - value_N.double()).var(correction=0)) / spread
