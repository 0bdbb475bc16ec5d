"""Sound algorithms that are not the ones they claim to be: no rule of the conformance suite is broken, the paper is.

Shapes: T packed tokens.
"""

from __future__ import annotations

from dataclasses import replace

from published_settings import OVERLONG
from torch import Tensor

from areal_lit.token_batch import Loss, TokenBatch, TokenOutputs
from areal_lit.types import Metric
from areal_lit_algorithms.cispo import CISPO
from areal_lit_algorithms.dapo import DAPO
from areal_lit_algorithms.dr_grpo import DrGRPO
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.gspo import GSPO
from areal_lit_algorithms.icepop import IcePop
from areal_lit_algorithms.kpop import KPop
from areal_lit_algorithms.m2po import M2PO
from areal_lit_algorithms.pieces.gae import at_last_token, reward_to_go
from areal_lit_algorithms.pieces.normalisation import Normaliser
from areal_lit_algorithms.pieces.ratios import log_ratio, ratio
from areal_lit_algorithms.pieces.rejection import Rejection
from areal_lit_algorithms.pieces.shaping import Shaping
from areal_lit_algorithms.policy_gradient import PolicyGradient
from areal_lit_algorithms.ppo import PPO
from areal_lit_algorithms.reinforce_pp import ReinforcePP
from areal_lit_algorithms.reinforce_pp_baseline import ReinforcePPBaseline
from areal_lit_algorithms.rloo import RLOO
from areal_lit_algorithms.sapo import SAPO

LossAndMetrics = tuple[Tensor, tuple[Metric, ...]]


class Optimistic(GRPO):
    """The smaller of the two losses."""

    def loss(self, logprob_T: Tensor, old_T: Tensor, batch: TokenBatch) -> LossAndMetrics:
        ratio_T, advantage_T = ratio(logprob_T - old_T), batch["advantage"]
        return (-advantage_T * ratio_T).minimum(-advantage_T * ratio_T.clamp(0.8, 1.2)), ()


class ClipsBadOnWrongSide(GRPO):
    """For negative advantages the bound on the other side of 1."""

    def loss(self, logprob_T: Tensor, old_T: Tensor, batch: TokenBatch) -> LossAndMetrics:
        ratio_T, advantage_T = ratio(logprob_T - old_T), batch["advantage"]
        return -advantage_T * ratio_T.clamp(max=1.2), ()


class RatioToBehaviour(GRPO):
    """Clipped around the policy that drew the token, and corrected for it as well."""

    def loss(self, logprob_T: Tensor, old_T: Tensor, batch: TokenBatch) -> LossAndMetrics:
        return super().loss(logprob_T, batch["logprob"].where(batch["loss_mask"], 0.0), batch)


class RatioOfItself(GRPO):
    """The old log-prob is the current one."""

    def loss(self, logprob_T: Tensor, old_T: Tensor, batch: TokenBatch) -> LossAndMetrics:
        return super().loss(logprob_T, logprob_T.detach(), batch)


class GradientThroughWeight(GRPO):
    """The off-policy weight of the current policy, with its gradient."""

    def policy_objective(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        loss = super().policy_objective(outputs, batch)
        log_T = log_ratio(outputs.logprob_T, batch["proximal"], batch["loss_mask"])
        return replace(loss, values=loss.values * (log_T - log_T.detach()).exp())


class InvertedWeight(GRPO):
    """behaviour / proximal."""

    def policy_objective(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        loss = super().policy_objective(outputs, batch)
        weight_T = ratio(log_ratio(batch["proximal"].double(), batch["logprob"], batch["loss_mask"]))
        return replace(loss, values=loss.values / weight_T.clamp(max=5.0).square())


class MaskedOutOfDenominator(IcePop):
    """Tokens that are left out are not counted either."""

    def weigh(self, minibatch: TokenBatch) -> TokenBatch:
        weight_T = ratio(log_ratio(minibatch["proximal"].double(), minibatch["logprob"], minibatch["loss_mask"]))
        kept_T = minibatch["loss_mask"] & (weight_T >= 0.5) & (weight_T <= 5)
        return minibatch.with_columns(token_weight=minibatch["loss_mask"].float() / kept_T.sum().clamp(min=1))


class GradientThroughClippedWeight(CISPO):
    """The weight keeps its gradient."""

    def loss(self, logprob_T: Tensor, old_T: Tensor, batch: TokenBatch) -> LossAndMetrics:
        return -ratio(logprob_T - old_T).clamp(max=5.0) * batch["advantage"] * logprob_T, ()


class SequenceRatioOfSums(GSPO):
    """The ratio of the sequences instead of its geometric mean."""

    def loss(self, logprob_T: Tensor, old_T: Tensor, batch: TokenBatch) -> LossAndMetrics:
        log_T = (logprob_T - old_T) * batch.to_tokens(batch.loss_tokens_S.clamp(min=1))
        return super().loss(log_T, log_T.new_zeros(log_T.shape), batch)


class KeepsTheLargest(M2PO):
    """The tokens that should go stay."""

    def prepare(self, batch: TokenBatch) -> TokenBatch:
        prepared = super().prepare(batch)
        return prepared.with_columns(kept=batch["loss_mask"] & ~prepared["kept"])


class OutcomeOnly(ReinforcePP):
    """The divergence is forgotten."""

    def token_rewards(self, batch: TokenBatch) -> Tensor:
        return at_last_token(self.advantages(batch).double(), batch)


class ValuesIgnored(PPO):
    """Returns instead of advantages."""

    def token_advantages(self, batch: TokenBatch) -> Tensor:
        return reward_to_go(batch, self.token_rewards(batch))


MUTANTS: dict[str, tuple[str, PolicyGradient]] = {
    "deviation of the wrong level": ("grpo", GRPO(reward_norm=Normaliser(std_level="batch"))),
    "mean of the wrong level": ("lite_ppo", GRPO(reward_norm=Normaliser(mean_level="batch", std_level="batch"))),
    "biased deviation": ("grpo", GRPO(reward_norm=Normaliser(unbiased_std=False))),
    "no deviation": ("grpo", GRPO(reward_norm=Normaliser(std_level="none"))),
    "a mean that holds the sample itself": ("rloo", RLOO(reward_norm=Normaliser(std_level="none"))),
    "tokens for sequences": ("rloo", RLOO(aggregation="token_mean")),
    "sequences for a constant": (
        "dr_grpo", GRPO(reward_norm=Normaliser(std_level="none"), aggregation="sequence_mean"),
    ),
    "the wrong constant": ("dr_grpo", DrGRPO(max_length=13)),
    "clips exchanged": ("dapo", DAPO(reward_shaping=OVERLONG, clip_low=0.28, clip_high=0.2)),
    "no penalty on length": ("dapo", DAPO(reward_shaping=Shaping())),
    "the optimistic clip": ("grpo", Optimistic()),
    "clip on the wrong side": ("grpo", ClipsBadOnWrongSide()),
    "ratio to the behaviour policy": ("grpo", RatioToBehaviour()),
    "ratio of a policy to itself": ("grpo", RatioOfItself()),
    "gradient through the off-policy weight": ("grpo", GradientThroughWeight()),
    "inverted off-policy weight": ("grpo", InvertedWeight()),
    "no off-policy weight": ("grpo", GRPO(decoupled=False)),
    "weight masked instead of clamped": ("grpo", GRPO(rejection=Rejection(action="mask"))),
    "masked tokens out of the denominator": ("icepop", MaskedOutOfDenominator()),
    "ratio for a divergence": ("kpop", IcePop(rejection=Rejection(action="mask", upper=2.0))),
    "sum of divergences for the larger": ("kpop", KPop(rejection=Rejection(action="mask", metric="k3", upper=2.0))),
    "gradient through the clipped weight": ("cispo", GradientThroughClippedWeight()),
    "ratio of sums": ("gspo", SequenceRatioOfSums()),
    "gates exchanged": ("sapo", SAPO(tau_pos=1.05, tau_neg=1.0)),
    "the largest moments kept": ("m2po", KeepsTheLargest()),
    "divergence forgotten": ("reinforce_pp", OutcomeOnly()),
    "divergence not whitened": ("reinforce_pp", ReinforcePP(advantage_norm=None)),
    "gradient of the forward divergence": ("reinforce_pp_baseline", ReinforcePPBaseline(kl_estimator="k3")),
    "values ignored": ("ppo", ValuesIgnored()),
    "credit of one step": ("ppo", PPO(lam=0.0)),
}  # fmt: skip
"""By what is wrong: the algorithm each claims to be, and what it is."""
