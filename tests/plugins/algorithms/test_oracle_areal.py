"""Algorithms and pieces against AReaL on the golden cases."""

from __future__ import annotations

from typing import Any

import golden_file
import pytest
from oracle_batches import (
    assert_number,
    assert_step,
    assert_tokens,
    assert_values,
    packed,
    take_step,
    to_padded,
    weight_of,
)
from oracle_pairs import take_pair_step
from ragged_cases import MAX_LENGTH, cases

from areal_lit_algorithms.dapo import DAPO
from areal_lit_algorithms.dpo import DPO
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.gspo import GSPO
from areal_lit_algorithms.icepop import IcePop
from areal_lit_algorithms.pieces.kl import kl_reward
from areal_lit_algorithms.pieces.normalisation import Normaliser
from areal_lit_algorithms.pieces.rejection import Rejection
from areal_lit_algorithms.pieces.shaping import Overlong, Shaping
from areal_lit_algorithms.policy_gradient import PolicyGradient
from areal_lit_algorithms.ppo import PPO
from areal_lit_algorithms.reinforce_pp import ReinforcePP
from areal_lit_algorithms.reinforce_pp_baseline import ReinforcePPBaseline
from areal_lit_algorithms.rloo import RLOO
from areal_lit_algorithms.sapo import SAPO

ALGORITHMS = golden_file.read("areal_algorithms")
PIECES = golden_file.read("areal_pieces")
OUTCOMES = [case.without_turn_rewards for case in cases()]
"""AReaL has no rewards per turn."""

WHOLE: dict[str, PolicyGradient] = {
    "grpo": GRPO(),
    "grpo_centred": GRPO(reward_norm=Normaliser(std_level="none"), clip_high=0.3, clip_dual=1.5),
    "grpo_behaviour": GRPO(decoupled=False, old="behaviour"),
    "grpo_loglinear": GRPO(proximal="loglinear"),
    "grpo_linear": GRPO(proximal="linear"),
    "dapo": DAPO(reward_shaping=Shaping(overlong=Overlong(max_length=MAX_LENGTH, buffer=8))),
    "rloo_clipped": RLOO(clipped=True, aggregation="token_mean"),
    "icepop": IcePop(),
    "gspo": GSPO(decoupled=False, aggregation="token_mean"),
    "sapo": SAPO(aggregation="token_mean"),
    "reinforce_pp": ReinforcePP(kl_weight=0.05),
    "reinforce_pp_baseline": ReinforcePPBaseline(kl_weight=0.0),
    "ppo": PPO(),
}

BOUNDS: dict[str, dict[str, Any]] = {
    "ratio": {"lower": 0.5, "upper": 2.0},
    "k1": {"lower": -0.2, "upper": 0.2},
    "k2": {"upper": 0.2},
    "k3": {"upper": 0.2},
}
LEVELS = [("token", "mean"), ("sequence", "sum"), ("sequence", "mean"), ("sequence", "max")]


@pytest.mark.parametrize("name", WHOLE)
def test_whole_algorithms(name: str) -> None:
    for case in OUTCOMES:
        assert_step(take_step(WHOLE[name], case), case, ALGORITHMS, name)


@pytest.mark.parametrize(("shape", "theirs"), [("squared", "mse"), ("huber", "huber")])
def test_critic(shape: Any, theirs: str) -> None:
    for case in OUTCOMES:
        algorithm = PPO(value_loss=shape, advantage_norm=None)
        assert_step(take_step(algorithm, case, "critic"), case, ALGORITHMS, f"critic_{theirs}")


@pytest.mark.parametrize(("loss", "beta"), [("sigmoid", 0.1), ("ipo", 0.25)])
def test_preferences(loss: Any, beta: float) -> None:
    algorithm = DPO(loss=loss, beta=beta)
    for case in OUTCOMES:
        step, name = take_pair_step(algorithm, case), f"dpo/{loss}"
        assert_number(step.loss, ALGORITHMS.outputs[f"{name}/loss"][case.index], step.size, f"{name} of {case.index}")
        assert_tokens(step.gradient, case, ALGORITHMS, f"{name}/gradient")


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_divergence(estimator: Any) -> None:
    for case in OUTCOMES:
        batch = packed(case.index)
        value_T = kl_reward(batch["proximal"], batch["reference"], batch["loss_mask"], estimator)
        assert_tokens(to_padded(case, value_T), case, PIECES, f"kl/{estimator}/value")


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        ("batch_batch_false", Normaliser(mean_level="batch", std_level="batch")),
        ("batch_none_true", Normaliser(mean_level="batch", std_level="none", leave_one_out=True)),
    ],
)
def test_normalisation_over_tokens(name: str, norm: Normaliser) -> None:
    for case in OUTCOMES:
        batch = packed(case.index)
        value_T = norm.tokens(batch["value"].double(), batch)
        assert_tokens(to_padded(case, value_T), case, PIECES, f"norm/{name}/value")


@pytest.mark.parametrize("unbiased", [True, False])
def test_normalisation_over_groups(unbiased: bool) -> None:
    for case in OUTCOMES:
        batch = packed(case.index)
        ours = Normaliser(unbiased_std=unbiased).samples(batch["reward"].double(), batch)
        assert_values(ours.numpy(), PIECES.outputs[f"group_norm/{str(unbiased).lower()}/worth"][case.index])


@pytest.mark.parametrize(("level", "aggregate"), LEVELS)
@pytest.mark.parametrize("metric", BOUNDS)
def test_rejection(metric: Any, level: Any, aggregate: Any) -> None:
    rejection = Rejection(level=level, action="mask", metric=metric, aggregate=aggregate, **BOUNDS[metric])
    dropped = 0
    for case in OUTCOMES:
        kept = weight_of(case, rejection, is_corrected=False)
        assert_tokens(kept, case, PIECES, f"kept/{metric}_{level}_{aggregate}/value")
        dropped += int((kept[case.mask] == 0).sum())
    assert dropped > 100


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_clamped_weight(level: Any) -> None:
    rejection = Rejection(level=level, lower=0.5, upper=2.0)
    for case in OUTCOMES:
        weight = weight_of(case, rejection, is_corrected=True)
        assert_tokens(weight, case, PIECES, f"weight/{level}_mean/value")
