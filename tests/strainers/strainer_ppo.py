"""PPO with a critic on the contracts, thin: two roles, GAE with a bootstrap, clipped values (arXiv 1707.06347).

Shapes: T packed tokens, S segments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from areal_lit.contracts.algorithm import Need
from areal_lit.token_batch import Dim, Loss, Objective, TokenBatch, TokenOutputs, masked_metric
from areal_lit.types import Metric
from areal_lit_algorithms.policy_gradient import PolicyGradient
from areal_lit_algorithms.policy_loss import clipped_ratio


class PPO(PolicyGradient):
    """Advantages from a critic's values over loss tokens; the critic learns the returns.

    Args:
        gamma: discount per loss token.
        lam: GAE's mixing of steps; 1 is the return minus the value.
        value_clip: the critic's update is judged within this distance of its old value.
    """

    def __init__(self, *, gamma: float = 1.0, lam: float = 0.95, value_clip: float = 0.2, **policy: Any) -> None:
        super().__init__(**policy)
        self.gamma = gamma
        self.lam = lam
        self.value_clip = value_clip

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | {"values"}

    @property
    def columns(self) -> Mapping[str, Dim]:
        return {**super().columns, "returns": "T"}

    @property
    def heads(self) -> Mapping[str, Literal["lm", "value", "score"]]:
        return {"policy": "lm", "critic": "value"}

    def token_advantages(self, batch: TokenBatch) -> Tensor:
        return gae(batch, gamma=self.gamma, lam=self.lam)

    def prepare(self, batch: TokenBatch) -> TokenBatch:
        batch = super().prepare(batch)
        return batch.with_columns(returns=batch["advantage"] + batch["value"].where(batch["loss_mask"], 0.0))

    def loss(self, log_ratio_T: Tensor, batch: TokenBatch) -> tuple[Tensor, tuple[Metric, ...]]:
        return clipped_ratio(log_ratio_T, batch["advantage"], batch["loss_mask"], clip_low=0.2, clip_high=0.2)

    def objectives(self) -> Mapping[str, Objective]:
        return {**super().objectives(), "critic": self.critic_objective}

    def critic_objective(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        """The larger of the squared errors of the new value and of the new value kept near the old one, halved."""
        assert outputs.value_T is not None
        mask_T = batch["loss_mask"]
        value_T, old_T = outputs.value_T.where(mask_T, 0.0), batch["value"].where(mask_T, 0.0)
        near_T = old_T + (value_T - old_T).clamp(-self.value_clip, self.value_clip)
        error_T = (value_T - batch["returns"]).square().maximum((near_T - batch["returns"]).square()) / 2
        error_T = error_T.where(mask_T, 0.0)
        return Loss(values=error_T, metrics=(masked_metric("value_error", error_T, mask_T),))


def gae(batch: TokenBatch, *, gamma: float, lam: float) -> Tensor:
    """Generalised advantages over loss tokens, [T], 0 elsewhere; the reward comes with the last loss token.

    A truncated sequence goes on with ``final_value``, the value after its last token; a finished one is worth
    nothing beyond its reward.
    """
    advantage_T = torch.zeros(batch.num_tokens, dtype=torch.float64)
    value_T = batch["value"].double()
    after_S = batch["final_value"].double().where(batch["truncated"], 0.0)
    for segment in range(batch.num_segments):
        tokens = ((batch["segment"] == segment) & batch["loss_mask"]).nonzero()[:, 0].tolist()
        following, reward, carried = after_S[segment], batch["reward"][segment].double(), 0.0
        for token in reversed(tokens):
            carried = reward + gamma * following - value_T[token] + gamma * lam * carried
            advantage_T[token] = carried
            following, reward = value_T[token], 0.0
    return advantage_T.float()
