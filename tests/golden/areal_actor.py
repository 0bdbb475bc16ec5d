"""AReaL's own advantages of a case: ``PPOActor._compute_advantages``, one sequence at a time.

It has no rewards per turn, and finds truncated sequences by their length: a sequence is padded unless truncated.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from areal.trainer.ppo.actor import PPOActor
from areal.utils.data import KLEstimator
from ragged_cases import Case, Floats
from torch import Tensor


def advantages(
    case: Case,
    reward: Floats,
    *,
    kl: float = 0.0,
    lam: float = 1.0,
    value: Floats | None = None,
    is_decoupled: bool = False,
    has_tail: bool = False,
) -> Tensor:
    """KL in the reward, then GAE; [B, S].

    Args:
        has_tail: leave what follows the last trained token in the sequence.
    """
    result = torch.zeros(case.mask.shape)
    for row in np.flatnonzero(case.is_trained):
        n = int(case.length[row] if has_tail else np.flatnonzero(case.mask[row])[-1] + 1)
        data = _data(case, row, n, float(reward[row]), value)
        result[row, :n] = _actor(kl, lam, is_decoupled)._compute_advantages(data)["advantages"][0, :n]
    return result * torch.tensor(case.mask)


def _actor(kl: float, lam: float, is_decoupled: bool) -> PPOActor:
    """One that was never set up: only what its advantages read."""
    settings = SimpleNamespace(
        overlong_reward_penalty=False, use_decoupled_loss=is_decoupled, recompute_logprob=True
    )  # fmt: skip
    actor = object.__new__(PPOActor)
    actor.__dict__ |= {
        "config": settings, "reward_bias": 0.0, "reward_scaling": 1.0, "reward_clip": 1e9, "reward_norm": None,
        "adv_norm": None, "kl_ctl": kl, "kl_estimator": KLEstimator("k1"), "mask_no_eos_with_zero": False,
        "discount": 1.0, "gae_lambda": lam,
    }  # fmt: skip
    return actor


def _data(case: Case, row: int, n: int, reward: float, value: Floats | None) -> dict[str, Tensor]:
    """The first n tokens of a row after one prompt token.

    What AReaL computed stands one position before its token; the mask and the engine's log-probs on it.
    """
    padding = 0 if case.truncated[row] else 1

    def placed(x: Floats, before: int) -> Tensor:
        return torch.tensor(np.concatenate([np.zeros(before), x[row, :n], np.zeros(1 - before + padding)]))[
            None
        ].float()

    data = {
        "input_ids": torch.zeros(1, 1 + n + padding, dtype=torch.long),
        "attention_mask": torch.tensor([[1] * (1 + n) + [0] * padding]),
        "loss_mask": placed(case.mask, 1),
        "logprobs": placed(case.behaviour, 1),
        "prox_logp": placed(case.proximal, 0),
        "ref_logp": placed(case.reference, 0),
        "rewards": torch.tensor([reward]),
    }
    if value is not None:
        data["values"] = placed(value, 0)
        data["values"][0, n] = case.final_value[row]
    return data
