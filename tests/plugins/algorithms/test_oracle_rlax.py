"""Advantages, also with a lambda of the length, clipped surrogate and Huber loss against rlax on the golden cases."""

from __future__ import annotations

from typing import Any

import golden_file
import pytest
from oracle_batches import assert_step, assert_tokens, packed, take_step, to_packed, to_padded
from ragged_cases import cases

from areal_lit_algorithms.pieces.gae import LengthLambda, gae
from areal_lit_algorithms.ppo import PPO

RLAX = golden_file.read("rlax")


@pytest.mark.parametrize(
    ("name", "gamma", "lam"),
    [("gae", 1.0, 0.95), ("alpha", 0.97, LengthLambda(alpha=0.3)), ("q", 1.0, LengthLambda(q=0.5))],
)
def test_advantages(name: str, gamma: float, lam: Any) -> None:
    for case in cases():
        advantage_T = gae(packed(case.index), to_packed(case, case.token_reward), gamma=gamma, lam=lam)
        assert_tokens(to_padded(case, advantage_T), case, RLAX, f"{name}/advantage")


@pytest.mark.parametrize("old", ["behaviour", "proximal"])
def test_ppo(old: Any) -> None:
    algorithm = PPO(advantage_norm=None, decoupled=False, old=old, rejection=None)
    for case in cases():
        assert_step(take_step(algorithm, case), case, RLAX, f"ppo_{old}", has_advantage=False)


def test_critic() -> None:
    algorithm = PPO(advantage_norm=None, value_loss="huber", value_clip=None)
    for case in cases():
        assert_step(take_step(algorithm, case, "critic"), case, RLAX, "critic_huber", has_advantage=False)
