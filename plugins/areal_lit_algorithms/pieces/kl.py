"""Divergence from a reference policy: estimators per token, in the reward or in the loss, and its weight.

Shapes: T packed tokens. With x = logprob - reference on tokens of the current policy, k1 = x, k2 = x^2 / 2 and
k3 = exp(-x) - 1 + x estimate the reverse KL. As loss terms their gradients matter: k2's is that of the reverse KL in
expectation, k3's that of the forward KL; ``k3+`` has k3's value and k2's gradient. k1's has zero mean on-policy.
In the reward it is the other way round: k1 gives the policy the gradient of the reverse KL, k2 and k3 do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from areal_lit.token_batch import masked_metric
from areal_lit.types import Metric
from areal_lit_algorithms.pieces.ratios import log_ratio, ratio

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.token_batch import TokenBatch

KLEstimator = Literal["k1", "k2", "k3", "k3+"]
KLPlace = Literal["loss", "reward"]

LARGEST_ERROR = 0.2
"""Of the divergence from its target, as a share of that, in one step of the controller."""
LEAST_LOG_RATIO = -20.0
"""Below, k3 stays what it is there and has no gradient. It neither overflows nor pulls the other way."""
RATIO_CAP = 10.0
"""Of the ratio a loss term carries. Beyond, a token says more about the mismatch than about the divergence."""


def estimate(x: Tensor, estimator: KLEstimator) -> Tensor:
    """The estimate of E[x] for a log-ratio x under its first policy, with its own gradient; x's shape."""
    if estimator == "k1":
        return x
    if estimator == "k2":
        return x.square() / 2
    bounded = x.clamp(min=LEAST_LOG_RATIO)
    k3 = (-bounded).expm1() + bounded
    if estimator == "k3":
        return k3
    if estimator == "k3+":
        gradient = x.square() / 2
        return k3.detach() + gradient - gradient.detach()
    raise ValueError(f"a KL estimator must be k1, k2, k3 or k3+, got {estimator!r}")


def kl_loss(
    logprob_T: Tensor, reference_T: Tensor, behaviour_T: Tensor, mask_T: Tensor, estimator: KLEstimator
) -> Tensor:
    """The estimate per token, times the ratio to the policy the token came from (no gradient through it), [T]."""
    value_T = estimate(log_ratio(logprob_T, reference_T, mask_T), estimator)
    return value_T * ratio(log_ratio(logprob_T.detach(), behaviour_T, mask_T)).clamp(max=RATIO_CAP)


def kl_reward(logprob_T: Tensor, reference_T: Tensor, mask_T: Tensor, estimator: KLEstimator) -> Tensor:
    """The estimate per token without gradient, to be subtracted from rewards; 0 outside the mask, float64 [T]."""
    return estimate(log_ratio(logprob_T.detach().double(), reference_T, mask_T), estimator)


def check_estimator(estimator: KLEstimator, place: KLPlace) -> None:
    """Raise ValueError for an estimator that does not do what is wanted of it there."""
    if place == "loss" and estimator == "k1":
        raise ValueError(
            "kl_estimator k1 has a gradient of zero mean on-policy and is no loss term; take k2 (reverse KL), k3 "
            "(forward KL) or k3+, or set kl_in to 'reward'"
        )
    if place == "reward" and estimator == "k3+":
        raise ValueError("kl_estimator k3+ differs from k3 in its gradient, which a reward has none of; take k3")


def adapted_weight(weight: float, kl: float, *, target: float, gain: float) -> float:
    """The weight after a step whose divergence was ``kl``: ``weight (1 + gain clip(kl / target - 1, -0.2, 0.2))``.

    The log-space controller of arXiv 1909.08593, section 2.2, whose gain is 0.1. A divergence that is not finite moves
    nothing: its step was not taken.
    """
    if not math.isfinite(kl):
        return weight
    return weight * (1 + gain * min(max(kl / target - 1, -LARGEST_ERROR), LARGEST_ERROR))


class KLTerm:
    """The divergence from a reference in each token's reward or loss, at a weight that a controller may move.

    The weight travels in the batch, as its scalar ``kl_weight``.

    Args:
        weight: to begin with; 0 for no divergence.
        place: whether it is subtracted from rewards or added to losses.
        estimator: of the divergence, as that place allows.
        target: nats per token toward which the weight is moved; None keeps it.
        gain: how fast.
    """

    def __init__(
        self, weight: float, *, place: KLPlace, estimator: KLEstimator, target: float | None, gain: float
    ) -> None:
        check_estimator(estimator, place)
        if not 0 <= weight < math.inf:
            raise ValueError(f"kl_weight must be finite and >= 0, got {weight}")
        if target is not None and not target > 0:
            raise ValueError(f"target_kl must be > 0 (or null to keep kl_weight as it is), got {target}")
        if target is not None and not weight > 0:
            raise ValueError(f"target_kl moves kl_weight, which must be > 0 then, got {weight}")
        if not 0 < gain < 1 / LARGEST_ERROR:
            raise ValueError(
                f"kl_gain must be in (0, {1 / LARGEST_ERROR:g}), or kl_weight would change its sign, got {gain}"
            )
        self.weight = weight
        self.place = place
        self.estimator = estimator
        self.target = target
        self.gain = gain

    @property
    def in_reward(self) -> bool:
        """Whether rewards lose by it."""
        return self.weight > 0 and self.place == "reward"

    def penalty(self, batch: TokenBatch) -> Tensor:
        """What it takes from each token's reward; float64 [T].

        Of the policy that the step starts from where that was recomputed, else of the one that drew the token.
        """
        policy_T = batch["proximal"] if "proximal" in batch else batch["logprob"]
        return batch.scalars["kl_weight"] * kl_reward(policy_T, batch["reference"], batch["loss_mask"], self.estimator)

    def loss(self, logprob_T: Tensor, batch: TokenBatch) -> tuple[Tensor, tuple[Metric, ...]]:
        """What it adds to each token's loss, [T], 0 where it is in the reward; and ``kl_reference`` in either case.

        The metric is k3 of the current policy on the tokens that are trained.
        """
        mask_T, reference_T = batch["loss_mask"], batch["reference"]
        x_T = log_ratio(logprob_T.detach(), reference_T, mask_T)
        metrics = (masked_metric("kl_reference", estimate(x_T, "k3"), mask_T),)
        if self.place == "reward":
            return logprob_T.new_zeros(logprob_T.shape), metrics
        value_T = kl_loss(logprob_T, reference_T, batch["logprob"], mask_T, self.estimator)
        return batch.scalars["kl_weight"] * value_T, metrics

    def end_step(self, metrics: Mapping[str, Metric]) -> list[Metric]:
        """Move the weight by the step's ``kl_reference``, if there is one, and report what the step had."""
        taken, measured = self.weight, metrics.get("train/kl_reference")
        if self.target is not None and measured is not None and measured.count:
            self.weight = adapted_weight(taken, measured.value, target=self.target, gain=self.gain)
        return [Metric(name="train/kl_weight", sum=taken)] if taken > 0 else []

    def state_dict(self) -> Mapping[str, float]:
        return {} if self.target is None else {"kl_weight": self.weight}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back a moved weight; one that is not moved any more is what the recipe says."""
        if self.target is not None and "kl_weight" in state:
            self.weight = float(state["kl_weight"])
