"""The off-policy weight between proximal and behaviour policy, and what is done about its extremes.

Shapes: T packed tokens, S segments. The weight multiplies the loss and never enters a denominator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from areal_lit.token_batch import masked_metric
from areal_lit_algorithms.pieces.kl import estimate
from areal_lit_algorithms.pieces.ratios import log_ratio, masked, ratio

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.token_batch import TokenBatch
    from areal_lit.types import Metric

RejectionMetric = Literal["ratio", "k1", "k2", "k3", "binary_kl"]


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """Bounds on how far the proximal policy may be from the one that drew a token, and what happens beyond.

    Args:
        level: judge each ``token``, or each ``sequence`` by all its loss tokens.
        action: ``mask`` takes what is out of bounds out of the loss; ``clamp`` keeps the weight within them (metric
            ratio only; at sequence level the weight then is the sequence's).
        metric: ``ratio`` is exp(proximal - behaviour); ``k1``, ``k2``, ``k3`` estimate KL(behaviour, proximal);
            ``binary_kl`` is the larger of the two KLs between having drawn this token and having drawn any other.
        aggregate: of a sequence's tokens: ``sum``, ``mean`` or ``max``; a ratio's in log space, so that ``sum`` is the
            ratio of the sequences and ``mean`` the geometric mean.
        lower: smallest value within bounds, for ratio and k1 only: the others are never below 0. Together they hold
            what the metric is where the policies agree: 1 for a ratio, 0 for the others. Null for none.
        upper: largest value within bounds; null for none.
        weight_cap: largest weight of what a mask keeps, at least 1; null for none. Judged each by itself, tokens whose
            ratio, k2 or k3 is within an upper bound have a bounded weight anyway; by binary_kl or by their sequence
            they may keep any. verl's truncation beside its masks is 2, and 20 in DPPO (arXiv 2602.04879).
    """

    level: Literal["token", "sequence"] = "token"
    action: Literal["mask", "clamp"] = "clamp"
    metric: RejectionMetric = "ratio"
    aggregate: Literal["sum", "mean", "max"] = "mean"
    lower: float | None = None
    upper: float | None = 5.0
    weight_cap: float | None = None

    def __post_init__(self) -> None:
        if self.action == "clamp" and self.metric != "ratio":
            raise ValueError(f"action clamp bounds the ratio itself, got metric {self.metric!r}; set action to mask")
        if self.weight_cap is not None and self.action == "clamp":
            raise ValueError(f"weight_cap is for action mask, got {self.weight_cap}; a clamp caps the weight at upper")
        if self.weight_cap is not None and not self.weight_cap >= 1:
            raise ValueError(f"weight_cap must be >= 1, the weight of on-policy tokens, got {self.weight_cap}")
        self._check_bounds()

    def _check_bounds(self) -> None:
        if self.lower is None and self.upper is None:
            raise ValueError("a rejection needs lower or upper, got neither; for none at all set it to null")
        if self.lower is not None and self.upper is not None and not self.lower < self.upper:
            raise ValueError(f"lower must be < upper, got {self.lower} and {self.upper}")
        if self.metric not in ("ratio", "k1") and self.lower is not None:
            raise ValueError(
                f"{self.metric} is 0 where the policies agree and never below, so lower can only reject on-policy "
                f"tokens, got {self.lower}; set it to null"
            )
        agreed = 1.0 if self.metric == "ratio" else 0.0
        lower, upper = (agreed if bound is None else bound for bound in (self.lower, self.upper))
        if not lower <= agreed <= upper:
            raise ValueError(
                f"the bounds of {self.metric} must hold {agreed:g}, which it is where the policies agree, or on-policy "
                f"tokens would be rejected; got {self.lower} to {self.upper}"
            )
        if self.metric == "ratio" and lower < 0:
            raise ValueError(f"lower must be >= 0 for a ratio, got {self.lower}")

    def statistic(self, proximal_T: Tensor, behaviour_T: Tensor, batch: TokenBatch) -> Tensor:
        """What is compared with the bounds, on every loss token; float64 [T]."""
        mask_T = batch["loss_mask"]
        log_T = log_ratio(proximal_T.double(), behaviour_T, mask_T)
        if self.metric == "binary_kl":
            value_T = binary_kl(masked(proximal_T.double(), mask_T), masked(behaviour_T.double(), mask_T))
        else:
            value_T = log_T if self.metric == "ratio" else estimate(-log_T, self.metric)
        if self.level == "sequence":
            value_T = batch.to_tokens(self._aggregated(value_T, batch))
        return ratio(value_T) if self.metric == "ratio" else value_T

    def apply(self, weight_T: Tensor, statistic_T: Tensor, mask_T: Tensor) -> tuple[Tensor, tuple[Metric, ...]]:
        """The weight after the action, [T], and the fractions of loss tokens below and above the bounds.

        With ``weight_cap`` also the fraction that it lowers, ``weight_capped``.
        """
        low_T = statistic_T < (float("-inf") if self.lower is None else self.lower)
        high_T = statistic_T > (float("inf") if self.upper is None else self.upper)
        metrics = [
            masked_metric("rejected_low", low_T.float(), mask_T),
            masked_metric("rejected_high", high_T.float(), mask_T),
        ]
        if self.action == "clamp":
            return statistic_T.clamp(self.lower, self.upper), tuple(metrics)
        kept_T = weight_T.where(~(low_T | high_T), 0.0)
        if self.weight_cap is not None:
            metrics.append(masked_metric("weight_capped", (kept_T > self.weight_cap).float(), mask_T))
            kept_T = kept_T.clamp(max=self.weight_cap)
        return kept_T, tuple(metrics)

    def _aggregated(self, x_T: Tensor, batch: TokenBatch) -> Tensor:
        """Over each sequence's loss tokens, [S]; 0 where there are none. ``x`` is 0 outside the mask."""
        if self.aggregate == "mean":
            return batch.segment_mean(x_T)
        if self.aggregate == "sum":
            return batch.segment_sum(x_T)
        lowest_T = x_T.where(batch["loss_mask"], float("-inf"))
        highest_S = lowest_T.new_full((batch.num_segments,), float("-inf"))
        highest_S = highest_S.scatter_reduce(0, batch["segment"], lowest_T, "amax")
        return masked(highest_S, batch.loss_tokens_S > 0)


def binary_kl(first_T: Tensor, second_T: Tensor) -> Tensor:
    """The larger of the KLs between Bernoulli(exp first) and Bernoulli(exp second), float64 [T].

    Certainty counts as a probability of 1 - 1e-6: log-probs from float32 logits know no more, and what is beyond would
    reject tokens that are 90% likely to the other policy. What only one of the two can draw is infinitely far, what
    neither can is not.
    """
    log_p, log_q = (x_T.double().clamp(max=-1e-6) for x_T in (first_T, second_T))
    p_T, q_T, not_p_T, not_q_T = log_p.exp(), log_q.exp(), -log_p.expm1(), -log_q.expm1()
    yes_T, no_T = log_p - log_q, not_p_T.log() - not_q_T.log()
    there_T = p_T * masked(yes_T, p_T > 0) + not_p_T * no_T
    back_T = -q_T * masked(yes_T, q_T > 0) - not_q_T * no_T
    return there_T.maximum(back_T)


def off_policy_weight(
    proximal_T: Tensor, behaviour_T: Tensor, batch: TokenBatch, *, is_corrected: bool, rejection: Rejection | None
) -> tuple[Tensor, tuple[Metric, ...]]:
    """What the loss of each token is multiplied by, without gradient, [T] (decoupled PPO, arXiv 2110.00641).

    Args:
        is_corrected: the weight starts as ``exp(proximal - behaviour)``; else as 1, which no clamp changes.
    """
    mask_T, proximal_T = batch["loss_mask"], proximal_T.detach()
    weight_T = ratio(log_ratio(proximal_T.double(), behaviour_T, mask_T))
    if not is_corrected:
        weight_T = weight_T.new_ones(weight_T.shape)
    metrics: tuple[Metric, ...] = ()
    if rejection is not None and (is_corrected or rejection.action == "mask"):
        statistic_T = rejection.statistic(proximal_T, behaviour_T, batch)
        weight_T, metrics = rejection.apply(weight_T, statistic_T, mask_T)
    return weight_T.to(proximal_T.dtype), metrics + weight_metrics(weight_T, mask_T)


def weight_metrics(weight_T: Tensor, mask_T: Tensor) -> tuple[Metric, ...]:
    """Mean and mean square of what losses are multiplied by, of which ``effective_sample_size`` makes its share."""
    return (
        masked_metric("off_policy_weight", weight_T, mask_T),
        masked_metric("off_policy_weight_square", weight_T.square(), mask_T),
    )


def check_without_proximal(decoupled: bool, rejection: Rejection | None) -> None:
    """Raise ValueError for what needs the proximal policy where the ratio refers to the behaviour policy."""
    if decoupled:
        raise ValueError("decoupled clips around the proximal policy, got old 'behaviour'; set decoupled to false")
    if rejection is not None and rejection.action == "mask":
        raise ValueError(
            "rejection masks by comparing with the proximal policy, got old 'behaviour'; set old to proximal, or "
            "rejection to null"
        )
