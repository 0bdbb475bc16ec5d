"""verl's advantages of a case, of float64.

verl has no process supervision: a turn's reward is compared with those of all turns of its group by verl's estimator,
one row per turn, and what is to come from a token is verl's undiscounted return.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from ragged_cases import Bools, Case, Floats, Ints
from torch import Tensor
from verl.trainer.ppo import core_algos as verl

Estimate = Callable[[Tensor, Ints], Tensor]


def outcome(estimator: Callable[..., Any], **settings: Any) -> Estimate:
    """One of verl's estimators on plain numbers: each a completion of one token."""

    def estimate(x: Tensor, group: Ints) -> Tensor:
        return estimator(x[:, None].clone(), torch.ones_like(x[:, None]), index=group, **settings)[0][:, 0]

    return estimate


GRPO = outcome(verl.compute_grpo_outcome_advantage)
CENTRED = outcome(verl.compute_grpo_outcome_advantage, norm_adv_by_std_in_grpo=False)
RLOO = outcome(verl.compute_rloo_outcome_advantage)


def compared(x: Floats, group: Ints, valid: Bools, estimate: Estimate) -> Floats:
    """The estimate among valid members of a group with others, 0 elsewhere; x's shape [N]."""
    peers = ((group[:, None] == group[None]) & valid[None]).sum(1)
    rows = valid & (peers > 1)
    result = np.zeros(len(x))
    result[rows] = estimate(torch.tensor(x[rows]), group[rows]).numpy()
    return result


def worth(case: Case, estimate: Estimate) -> Tensor:
    """What each token earns, [B, S]: its sample's worth on the last trained token, its turn's on the turn's."""
    result = case.on_last(compared(case.reward, case.group, case.is_trained, estimate))
    row, column = case.turn_reward.nonzero()
    turns = case.turn_reward[row, column]
    result[row, column] += compared(turns, case.group[row], np.ones(len(row), dtype=bool), estimate)
    return torch.tensor(result)


def to_go(token_reward: Tensor, mask: Tensor, gamma: float = 1.0) -> tuple[Tensor, Tensor]:
    """The whitened returns, and the returns; REINFORCE++."""
    settings = OmegaConf.create({"gamma": gamma})
    return verl.compute_reinforce_plus_plus_outcome_advantage(token_reward, mask, config=settings)


def with_what_follows(case: Case, gamma: float) -> Tensor:
    """Rewards per token, [B, S]. A truncated sequence goes on with the value after it, for which verl has no place but
    the last reward."""
    following = np.where(case.truncated, case.final_value, 0.0)
    return torch.tensor(case.token_reward + gamma * case.on_last(following))


def turn_advantages(case: Case, gamma: float, lam: float) -> Tensor:
    """GAE with turns as verl's tokens: rewards summed, the value of the first token, the result on all tokens."""
    reward, value, mask = torch.zeros(3, len(case.group), 1 + case.turn.max(), dtype=torch.float64)
    for row, column in zip(*case.mask.nonzero(), strict=True):
        turn = case.turn[row, column]
        reward[row, turn] += with_what_follows(case, gamma)[row, column]
        value[row, turn] += case.value[row, column] * (1 - mask[row, turn])
        mask[row, turn] = 1.0
    _, returns = verl.compute_gae_advantage_return(reward, value, mask, gamma, lam)
    return (returns - value).gather(1, torch.tensor(case.turn).clamp(min=0))
