"""What all policy-gradient algorithms share: from rewards to advantages, three policies, divergence, entropy.

Shapes: T packed tokens, S samples of the step, K turns that have a reward.

    reward -> reward_shaping -> reward_norm -+-> token_rewards -> token_advantages -> advantage_norm -> advantage
    turn_reward ------------> turn_norm -----+         |
    KL to the reference, with kl_in: reward -----------+

    loss(logprob, old) x off-policy weight + kl_weight x KL, with kl_in: loss - entropy_weight x entropy

A subclass states ``loss`` (per token), and any of ``advantages``, ``turn_norm``, ``token_rewards`` and
``token_advantages`` where the picture is not its own.

| published | ours | why |
|---|---|---|
| on-policy data | ``decoupled`` true | here data may be some versions old; on-policy the weight is 1 |
| AReaL masks tokens with off-policy weight > 5 | ``rejection`` clamps at 5 | as V-trace: no token is lost |
| KL 0.04 in GRPO's paper | ``kl_weight`` 0 | a verifiable reward needs no anchor, and no reference model |
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

from areal_lit.contracts.algorithm import Algorithm, Need
from areal_lit.token_batch import Dim, Loss, Objective, TokenBatch, TokenOutputs, masked_metric
from areal_lit.types import Metric
from areal_lit_algorithms.pieces.aggregation import Aggregation, check_max_length, token_weights
from areal_lit_algorithms.pieces.diagnostics import effective_sample_size, moments, ratio_metrics, reward_metrics
from areal_lit_algorithms.pieces.gae import at_last_token, reward_to_go
from areal_lit_algorithms.pieces.kl import KLEstimator, KLPlace, KLTerm
from areal_lit_algorithms.pieces.normalisation import Normaliser
from areal_lit_algorithms.pieces.proximal import RECOMPUTED, ProximalWay, compared, proximal_logprob, proximal_rules
from areal_lit_algorithms.pieces.ratios import masked
from areal_lit_algorithms.pieces.rejection import Rejection, check_without_proximal, off_policy_weight
from areal_lit_algorithms.pieces.shaping import Shaping

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.trainer import Trainer


class PolicyGradient(Algorithm):
    """A policy loss per token around an older policy.

    Which policy the ratio refers to:

    - ``decoupled`` (the default): the proximal one, and the loss carries the off-policy weight
      ``exp(proximal - behaviour)``, kept within bounds by ``rejection``. Right for stale data.
    - not ``decoupled``, ``old: proximal``: the proximal one, uncorrected. For synchronous runs whose engine
      and trainer agree.
    - not ``decoupled``, ``old: behaviour``: the policy that drew the token (plain PPO). Sound for a
      staleness of a few versions, where ratios stay near 1, and it needs no forward pass beforehand.

    Args:
        reward_shaping: penalty on length, bias, scale and bounds of rewards, in this order.
        reward_norm: what is subtracted from rewards, and what divides them. Rewards of turns are compared with those of
            all turns of the group.
        advantage_norm: the same for advantages, each loss token with a vote; null for none.
        turn_discount: what a later turn's reward counts for the turn before it, along the tree of a conversation.
        decoupled: clip around the proximal policy and correct for the behaviour policy by a weight.
        old: the policy in the ratio's denominator when not decoupled.
        proximal: where the policy at the start of the step comes from. ``recompute``: one forward pass then.
            ``loglinear``, ``linear``: between behaviour and current policy, by how many versions each token is old.
            ``current``: the current log-probs without gradient: the same numbers for the first mini-batch, so for one
            mini-batch only. ``compare``: recompute, and report how far the others are.
        rejection: bounds on the off-policy weight or on a divergence. ``mask`` acts also when not decoupled.
        aggregation: token_mean, sequence_mean, sequence_sum, group_mean or constant.
        max_length: the generation budget, for aggregation constant.
        kl_weight: of the divergence from the reference.
        kl_in: the divergence is subtracted from each token's ``reward``, or added to the ``loss``.
        kl_estimator: k2 (reverse KL's gradient), k3 (forward KL's) or k3+ (k3's value, k2's gradient) in the loss; k1,
            k2 or k3 in the reward.
        target_kl: nats per token toward which the weight is moved after each step; null keeps it.
        kl_gain: how fast.
        entropy_weight: of the entropy bonus.
        with_entropy: report the entropy even without a bonus.
    """

    def __init__(
        self,
        *,
        reward_shaping: Shaping = Shaping(),
        reward_norm: Normaliser = Normaliser(),
        advantage_norm: Normaliser | None = None,
        turn_discount: float = 1.0,
        decoupled: bool = True,
        old: Literal["proximal", "behaviour"] = "proximal",
        proximal: ProximalWay = "recompute",
        rejection: Rejection | None = Rejection(),
        aggregation: Aggregation = "token_mean",
        max_length: int | None = None,
        kl_weight: float = 0.0,
        kl_in: KLPlace = "loss",
        kl_estimator: KLEstimator = "k2",
        target_kl: float | None = None,
        kl_gain: float = 0.1,
        entropy_weight: float = 0.0,
        with_entropy: bool = False,
    ) -> None:
        if old == "behaviour":
            check_without_proximal(decoupled, rejection)
        if not 0 <= turn_discount <= 1:
            raise ValueError(f"turn_discount must be in [0, 1], got {turn_discount}")
        if not isfinite(entropy_weight):
            raise ValueError(f"entropy_weight must be a finite number, got {entropy_weight}")
        check_max_length(aggregation, max_length)
        self.reward_shaping = reward_shaping
        self.reward_norm = reward_norm
        self.advantage_norm = advantage_norm
        self.turn_discount = turn_discount
        self.decoupled = decoupled
        self.old = old
        self.proximal = proximal
        self.rejection = rejection
        self.aggregation = aggregation
        self.max_length = max_length
        self.kl_weight = kl_weight
        self.kl_in = kl_in
        self.kl_estimator = kl_estimator
        self.target_kl = target_kl
        self.kl_gain = kl_gain
        self.entropy_weight = entropy_weight
        self.with_entropy = with_entropy
        self._kl = KLTerm(kl_weight, place=kl_in, estimator=kl_estimator, target=target_kl, gain=kl_gain)

    @property
    def uses_proximal(self) -> bool:
        """Whether the proximal policy is in the ratio's denominator."""
        return self.decoupled or self.old == "proximal"

    # --- what subclasses state -------------------------------------------------------------------

    @abstractmethod
    def loss(self, logprob_T: Tensor, old_T: Tensor, batch: TokenBatch) -> tuple[Tensor, tuple[Metric, ...]]:
        """Loss per token, [T], and its metrics. ``logprob_T`` has the gradient; both are 0 where masked."""

    def advantages(self, batch: TokenBatch) -> Tensor:
        """What each sample's reward is worth, [S], 0 for those that may not vote."""
        return self.reward_norm.samples(self.reward_shaping(batch), batch)

    @property
    def turn_norm(self) -> Normaliser:
        """What rewards of turns and steps are compared by: each with those of all turns of its group."""
        return self.reward_norm

    def token_rewards(self, batch: TokenBatch) -> Tensor:
        """What each token earns, float64 [T].

        A sample's worth comes with its last loss token, a turn's with the turn's last, a divergence with each token.
        """
        mask_T = batch["loss_mask"]
        reward_T = at_last_token(self.advantages(batch).double(), batch)
        row_K = (batch["turn_scored"] & mask_T).nonzero()[:, 0]
        group_K = batch.to_tokens(batch["group"])[row_K]
        worth_K = self.turn_norm(batch["turn_reward"][row_K].double(), group_K, row_K >= 0)
        reward_T = reward_T.index_add(0, row_K, worth_K)
        return reward_T - self._kl.penalty(batch) if self._kl.in_reward else reward_T

    def token_advantages(self, batch: TokenBatch) -> Tensor:
        """The advantage of each token, [T]; by default all that is still to come from it on."""
        return reward_to_go(batch, self.token_rewards(batch), turn_discount=self.turn_discount)

    # --- on the controller: from rewards to advantages -------------------------------------------

    @property
    def needs(self) -> frozenset[Need]:
        wanted: dict[Need, bool] = {
            "proximal": self.uses_proximal and self.proximal in RECOMPUTED,
            "reference": self.kl_weight > 0,
            "entropy": self.with_entropy or self.entropy_weight != 0,
        }
        return frozenset(need for need, is_wanted in wanted.items() if is_wanted)

    @property
    def columns(self) -> Mapping[str, Dim]:
        return {"advantage": "T"}

    def rules(self, trainer: Trainer) -> Iterable[str]:
        if self.uses_proximal:
            yield from proximal_rules(self.proximal, trainer)
        if self.uses_rewards:
            yield from self.reward_norm.rules(trainer)
            yield from self.reward_shaping.rules(trainer)

    def prepare(self, batch: TokenBatch) -> TokenBatch:
        batch = batch.with_scalars(kl_weight=self._kl.weight)
        advantage_T = self.token_advantages(batch)
        if self.advantage_norm is not None:
            advantage_T = self.advantage_norm.tokens(advantage_T, batch)
        return batch.with_columns(advantage=masked(advantage_T, batch["loss_mask"]).float())

    def weigh(self, minibatch: TokenBatch) -> TokenBatch:
        weight_T = token_weights(minibatch, self.aggregation, max_length=self.max_length)
        return minibatch.with_columns(token_weight=weight_T)

    def step_metrics(self, batch: TokenBatch) -> Sequence[Metric]:
        if not self.uses_rewards:
            return ()
        metrics, mask_T = reward_metrics(self.reward_shaping, batch), batch["loss_mask"]
        if self._kl.in_reward:
            metrics += moments("reward_kl", -self._kl.penalty(batch)[mask_T])
        return [*metrics, *moments("advantage", batch["advantage"][mask_T])]

    def end_step(self, metrics: Mapping[str, Metric]) -> Sequence[Metric]:
        """Move the KL weight, and report what it was and what the off-policy weights leave of the data."""
        return [*effective_sample_size(metrics), *self._kl.end_step(metrics)]

    def state_dict(self) -> Mapping[str, Any]:
        return self._kl.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._kl.load_state_dict(state)

    # --- on ranks: from log-probs to a loss ------------------------------------------------------

    def objectives(self) -> Mapping[str, Objective]:
        return {"policy": self.policy_objective}

    def policy_objective(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        """The policy loss times the off-policy weight, plus divergence and entropy terms."""
        assert outputs.logprob_T is not None
        mask_T = batch["loss_mask"]
        logprob_T = masked(outputs.logprob_T, mask_T)
        old_T = behaviour_T = masked(batch["logprob"].to(logprob_T.dtype), mask_T)
        if self.uses_proximal:
            old_T = masked(proximal_logprob(self.proximal, logprob_T, batch), mask_T)
        values_T, metrics = self.loss(logprob_T, old_T, batch)
        metrics += self._distances(logprob_T, old_T, behaviour_T, batch)
        if self.uses_proximal:
            weight_T, weight_metrics = off_policy_weight(
                old_T, behaviour_T, batch, is_corrected=self.decoupled, rejection=self.rejection
            )
            values_T, metrics = values_T * weight_T, metrics + weight_metrics
        if self.kl_weight > 0:
            kl_T, kl_metrics = self._kl.loss(logprob_T, batch)
            values_T, metrics = values_T + kl_T, metrics + kl_metrics
        if outputs.entropy_T is not None:
            metrics += (masked_metric("entropy", outputs.entropy_T, mask_T),)
            values_T = values_T - self.entropy_weight * masked(outputs.entropy_T, mask_T)
        return Loss(values=values_T, metrics=metrics)

    def _distances(
        self, logprob_T: Tensor, old_T: Tensor, behaviour_T: Tensor, batch: TokenBatch
    ) -> tuple[Metric, ...]:
        """How far the policies are from each other, two by two."""
        mask_T = batch["loss_mask"]
        metrics = ratio_metrics("behaviour", logprob_T, behaviour_T, mask_T)
        if not self.uses_proximal:
            return metrics
        metrics += ratio_metrics("proximal", logprob_T, old_T, mask_T)
        metrics += ratio_metrics("off_policy", old_T, behaviour_T, mask_T)
        return metrics + (compared(logprob_T, batch) if self.proximal == "compare" else ())
