"""What all policy-gradient algorithms share: the three policies, aggregation, divergence and entropy terms.

Shapes: T packed tokens, S samples of the step.

A subclass states ``advantages`` (per sample; or ``token_advantages``) and ``loss`` (per token, from the log-ratio).

| published | ours | why |
|---|---|---|
| AReaL masks tokens with off-policy weight > 5 | truncated at ``off_policy_cap`` 5 | as V-trace: no token is lost |
| KL 0.04 in GRPO's paper | ``kl_weight`` 0 | a verifiable reward needs no anchor, and no reference model |
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from areal_lit.contracts.algorithm import Algorithm, Need
from areal_lit.token_batch import Dim, Loss, Objective, TokenBatch, TokenOutputs, masked_metric
from areal_lit.types import Metric
from areal_lit_algorithms.advantages import count_groups
from areal_lit_algorithms.aggregation import Aggregation, check_max_length, token_weights
from areal_lit_algorithms.kl import KLEstimator, k3, kl_loss
from areal_lit_algorithms.ratio import log_ratio, off_policy, ratio

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.trainer import Trainer


class PolicyGradient(Algorithm):
    """A policy loss per token around an older policy.

    Which policy the ratio refers to:

    - ``decoupled`` (the default): the proximal one, and the loss carries the off-policy weight
      ``exp(proximal - behaviour)``, cut at ``off_policy_cap``. Right for stale data.
    - not ``decoupled``, ``old: proximal``: the proximal one, uncorrected. For synchronous runs whose engine
      and trainer agree.
    - not ``decoupled``, ``old: behaviour``: the policy that drew the token (plain PPO). Sound for a
      staleness of a few versions, where ratios stay near 1, and it needs no forward pass beforehand.

    Args:
        decoupled: clip around the proximal policy and correct for the behaviour policy by a weight.
        old: the policy in the ratio's denominator when not decoupled.
        proximal: ``recompute`` takes one forward pass at the start of the step; ``current`` takes the current
            log-probs without gradient: the same numbers for the first mini-batch, so for one mini-batch only.
        off_policy_cap: upper bound of the off-policy weight; null for none.
        aggregation: token_mean, sequence_mean, group_mean or constant.
        max_length: the generation budget, for aggregation constant.
        kl_weight: of the divergence from the reference in the loss.
        kl_estimator: k2 (reverse KL's gradient), k3 (forward KL's) or k3+ (k3's value, k2's gradient).
        entropy_weight: of the entropy bonus.
        with_entropy: report the entropy even without a bonus.
    """

    def __init__(
        self,
        *,
        decoupled: bool = True,
        old: Literal["proximal", "behaviour"] = "proximal",
        proximal: Literal["recompute", "current"] = "recompute",
        off_policy_cap: float | None = 5.0,
        aggregation: Aggregation = "token_mean",
        max_length: int | None = None,
        kl_weight: float = 0.0,
        kl_estimator: KLEstimator = "k2",
        entropy_weight: float = 0.0,
        with_entropy: bool = False,
    ) -> None:
        if decoupled and old == "behaviour":
            raise ValueError("decoupled clips around the proximal policy, got old 'behaviour'; set decoupled to false")
        if off_policy_cap is not None and not off_policy_cap >= 1:
            raise ValueError(f"off_policy_cap must be >= 1 (or null for none), got {off_policy_cap}")
        if kl_weight < 0:
            raise ValueError(f"kl_weight must be >= 0, got {kl_weight}")
        check_max_length(aggregation, max_length)
        self.decoupled = decoupled
        self.old = old
        self.proximal = proximal
        self.off_policy_cap = off_policy_cap
        self.aggregation = aggregation
        self.max_length = max_length
        self.kl_weight = kl_weight
        self.kl_estimator = kl_estimator
        self.entropy_weight = entropy_weight
        self.with_entropy = with_entropy

    @abstractmethod
    def loss(self, log_ratio_T: Tensor, batch: TokenBatch) -> tuple[Tensor, tuple[Metric, ...]]:
        """Loss per token, [T], and its metrics; ``log_ratio_T`` carries the gradient and is 0 where masked."""

    def advantages(self, batch: TokenBatch) -> Tensor:
        """The advantage of each sample, [S], 0 where there is none."""
        raise NotImplementedError(f"{type(self).__name__} states neither advantages nor token_advantages")

    def token_advantages(self, batch: TokenBatch) -> Tensor:
        """The advantage of each token, [T]; by default its sample's."""
        return batch.to_tokens(self.advantages(batch))

    @property
    def uses_proximal(self) -> bool:
        """Whether the proximal policy is in the ratio's denominator."""
        return self.decoupled or self.old == "proximal"

    @property
    def needs(self) -> frozenset[Need]:
        wanted: dict[Need, bool] = {
            "proximal": self.uses_proximal and self.proximal == "recompute",
            "reference": self.kl_weight > 0,
            "entropy": self.with_entropy or self.entropy_weight != 0,
        }
        return frozenset(need for need, is_wanted in wanted.items() if is_wanted)

    @property
    def columns(self) -> Mapping[str, Dim]:
        return {"advantage": "T"}

    def rules(self, trainer: Trainer) -> Iterable[str]:
        if self.uses_proximal and self.proximal == "current" and trainer.num_minibatches > 1:
            yield (
                f"proximal is 'current', which is right for one mini-batch only, but num_minibatches is "
                f"{trainer.num_minibatches}: set it to 1, or proximal to 'recompute'"
            )

    def prepare(self, batch: TokenBatch) -> TokenBatch:
        advantage_T = self.token_advantages(batch)
        return batch.with_columns(advantage=advantage_T.where(batch["loss_mask"], 0.0))

    def weigh(self, minibatch: TokenBatch) -> TokenBatch:
        weight_T = token_weights(minibatch, self.aggregation, max_length=self.max_length)
        return minibatch.with_columns(token_weight=weight_T)

    def objectives(self) -> Mapping[str, Objective]:
        return {"policy": self.policy_objective}

    def policy_objective(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        """The policy loss, corrected for the behaviour policy, plus divergence and entropy terms."""
        logprob_T, behaviour_T, mask_T = outputs.logprob_T, batch["logprob"], batch["loss_mask"]
        assert logprob_T is not None
        old_T = behaviour_T
        if self.uses_proximal:
            old_T = batch["proximal"] if self.proximal == "recompute" else logprob_T.detach()
        log_ratio_T = log_ratio(logprob_T, old_T, mask_T)
        values_T, metrics = self.loss(log_ratio_T, batch)
        metrics += _ratio_metrics(logprob_T, old_T if self.uses_proximal else None, batch)
        if self.decoupled:
            correction = off_policy(old_T, behaviour_T, mask_T, self.off_policy_cap)
            values_T = values_T * correction.weight_T
            metrics += correction.metrics
        if self.kl_weight > 0:
            values_T = values_T + self.kl_weight * kl_loss(
                logprob_T, batch["reference"], behaviour_T, mask_T, self.kl_estimator
            )
            metrics += (masked_metric("kl_reference", k3(log_ratio(logprob_T, batch["reference"], mask_T)), mask_T),)
        if outputs.entropy_T is not None:
            metrics += (masked_metric("entropy", outputs.entropy_T, mask_T),)
            if self.entropy_weight:
                values_T = values_T - self.entropy_weight * outputs.entropy_T.where(mask_T, 0.0)
        return Loss(values=values_T, metrics=metrics)

    def step_metrics(self, batch: TokenBatch) -> Sequence[Metric]:
        advantage = batch["advantage"][batch["loss_mask"]].double()
        groups = count_groups(batch["reward"], batch).metrics()
        if not advantage.numel():
            return groups
        return (
            Metric(name="train/advantage_mean", sum=float(advantage.sum()), count=float(advantage.numel())),
            Metric(name="train/advantage_std", sum=float(advantage.std(correction=0))),
            Metric(name="train/advantage_max", sum=float(advantage.max()), reduction="max"),
            Metric(name="train/advantage_min", sum=float(advantage.min()), reduction="min"),
            *groups,
        )


def _ratio_metrics(logprob_T: Tensor, proximal_T: Tensor | None, batch: TokenBatch) -> tuple[Metric, ...]:
    """Mean and largest ratio of the current policy to behaviour and, where known, to proximal."""
    mask_T = batch["loss_mask"]
    metrics = []
    for name, old_T in {"behaviour": batch["logprob"], "proximal": proximal_T}.items():
        if old_T is not None:
            ratio_T = ratio(log_ratio(logprob_T.detach(), old_T, mask_T))
            metrics.append(masked_metric(f"ratio_{name}", ratio_T, mask_T))
            metrics.append(masked_metric(f"ratio_{name}_max", ratio_T, mask_T, "max"))
    return tuple(metrics)
