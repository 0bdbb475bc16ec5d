"""PPO with a critic (arXiv 1707.06347; on language models arXiv 2203.02155).

    delta_t = r_t + gamma V(s_t+1) - V(s_t)
    A_t = delta_t + gamma lam A_t+1              over loss tokens, or over turns
    return_t = V(s_t) + A_t, with critic_lam     what the critic learns
    A_t <- (A_t - mean) / (std + eps)            over all loss tokens of the step
    policy loss = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high))
    value loss = max((V - return)^2, (clip(V, V_old +- value_clip) - return)^2) / 2

A truncated sequence goes on with the value after its last token; a finished one is worth nothing beyond its rewards.

| published | ours | why |
|---|---|---|
| clip 0.2, ``lam`` 0.95 | 0.2, 0.95 | |
| ``gamma`` 0.99 in control, 1 on language | 1 | a reward at the end is worth as much to the first token |
| value clip 0.2 | 0.2 | |
| advantages whitened per mini-batch | over the step | splits must not matter |
| AReaL bootstraps from the value at the last token | from the value after it | that state is the one to come |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from areal_lit.token_batch import Loss
from areal_lit.types import Metric
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.diagnostics import explained_variance, moments
from areal_lit_algorithms.pieces.gae import LengthLambda, StepLevel, Steps, gae
from areal_lit_algorithms.pieces.normalisation import Normaliser
from areal_lit_algorithms.pieces.value_loss import ValueShape, clipped_value

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.contracts.algorithm import Need
    from areal_lit.token_batch import Dim, Objective, TokenBatch, TokenOutputs
    from areal_lit.trainer import Trainer


class PPO(GRPO):
    """Advantages from a critic's values; the critic learns the returns.

    Args:
        gamma: discount per step.
        lam: how far credit reaches: 1 is the return less the value, 0 the error of one step; or a function of the
            sequence's length (``{alpha: 0.05}`` is VAPO's).
        critic_lam: the same for the returns that the critic learns; null is ``lam``. VAPO takes 1.
        step_level: what a step is: a ``token`` or a whole ``turn``.
        value_clip: the critic's update is judged within this distance of its old value; null is off.
        value_loss: squared, or huber: linear beyond an error of 10.
        value_warmup_steps: the first steps of the run, in which only the critic is trained.
        reward_norm: what is subtracted from rewards, and what divides them.
        advantage_norm: the same for advantages, each loss token with a vote; null for none.
    """

    def __init__(
        self,
        *,
        gamma: float = 1.0,
        lam: float | LengthLambda = 0.95,
        critic_lam: float | LengthLambda | None = None,
        step_level: StepLevel = "token",
        value_clip: float | None = 0.2,
        value_loss: ValueShape = "squared",
        value_warmup_steps: int = 0,
        reward_norm: Normaliser = Normaliser(mean_level="none", std_level="none"),
        advantage_norm: Normaliser | None = Normaliser(mean_level="batch", std_level="batch"),
        **grpo: Any,
    ) -> None:
        super().__init__(reward_norm=reward_norm, advantage_norm=advantage_norm, **grpo)
        for name, value in {"gamma": gamma, "lam": lam, "critic_lam": critic_lam}.items():
            if isinstance(value, int | float) and not 0 <= value <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {value}")
        if self.turn_discount != 1:
            raise ValueError(
                f"turn_discount is for rewards without a critic, got {self.turn_discount}; here gamma discounts per "
                "step, with step_level 'turn' per turn"
            )
        if value_clip is not None and not value_clip > 0:
            raise ValueError(f"value_clip must be > 0 (or null for off), got {value_clip}")
        if value_warmup_steps < 0:
            raise ValueError(f"value_warmup_steps must be >= 0, got {value_warmup_steps}")
        self.gamma = gamma
        self.lam = lam
        self.critic_lam = critic_lam
        self.step_level = step_level
        self.value_clip = value_clip
        self.value_loss = value_loss
        self.value_warmup_steps = value_warmup_steps

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | {"values"}

    @property
    def columns(self) -> Mapping[str, Dim]:
        return {**super().columns, "returns": "T"}

    @property
    def heads(self) -> Mapping[str, Literal["lm", "value", "score"]]:
        return {"policy": "lm", "critic": "value"}

    def rules(self, trainer: Trainer) -> Iterable[str]:
        yield from super().rules(trainer)
        if trainer.max_steps is not None and 0 < trainer.max_steps <= self.value_warmup_steps:
            yield (
                f"value_warmup_steps {self.value_warmup_steps} trains the critic alone for all of max_steps "
                f"{trainer.max_steps}, and the policy never; lower it, or raise max_steps"
            )

    def is_trained(self, role: str, step: int) -> bool:
        return role == "critic" or step >= self.value_warmup_steps

    def token_advantages(self, batch: TokenBatch) -> Tensor:
        return self._gae(batch, self.lam)

    def prepare(self, batch: TokenBatch) -> TokenBatch:
        batch = super().prepare(batch)
        steps = Steps.of(batch, self.step_level)
        value_T = steps.to_tokens(steps.firsts(batch["value"]), batch.num_tokens)
        advantage_T = self._gae(batch, self.lam if self.critic_lam is None else self.critic_lam)
        return batch.with_columns(returns=(value_T + advantage_T).float())

    def objectives(self) -> Mapping[str, Objective]:
        return {**super().objectives(), "critic": self.critic_objective}

    def critic_objective(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        """How far new values are from the returns."""
        assert outputs.value_T is not None
        values_T, metrics = clipped_value(
            outputs.value_T, batch["value"], batch["returns"], batch["loss_mask"],
            value_clip=self.value_clip, shape=self.value_loss,
        )  # fmt: skip
        return Loss(values=values_T, metrics=metrics)

    def step_metrics(self, batch: TokenBatch) -> Sequence[Metric]:
        mask_T = batch["loss_mask"]
        value_N, return_N = batch["value"][mask_T], batch["returns"][mask_T]
        explained = Metric(name="critic/explained_variance", sum=explained_variance(value_N, return_N))
        return [*super().step_metrics(batch), *moments("return", return_N), *moments("value", value_N), explained]

    def _gae(self, batch: TokenBatch, lam: float | LengthLambda) -> Tensor:
        return gae(batch, self.token_rewards(batch), gamma=self.gamma, lam=lam, level=self.step_level)
