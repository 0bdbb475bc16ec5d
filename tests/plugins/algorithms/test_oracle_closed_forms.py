"""Every algorithm against its paper in plain Python, in value and gradient, on the golden cases."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest
from algorithm_family import FAMILY
from algorithm_mutants import MUTANTS
from algorithm_papers import Total, critic_step, policy_step
from algorithm_reference import Sample, Token
from offline_papers import imitation_step, preference_step, reward_model_step
from oracle_batches import Step, assert_number, take_step
from oracle_pairs import OfflineStep, take_offline_step, take_pair_step
from pairwise_options import pairwise
from published_settings import PUBLISHED
from ragged_cases import Case, Floats, cases

from areal_lit_algorithms.dpo import DPO
from areal_lit_algorithms.pieces.gae import LengthLambda
from areal_lit_algorithms.pieces.normalisation import Normaliser
from areal_lit_algorithms.pieces.rejection import Rejection
from areal_lit_algorithms.pieces.shaping import Overlong, Shaping
from areal_lit_algorithms.policy_gradient import PolicyGradient
from areal_lit_algorithms.ppo import PPO
from areal_lit_algorithms.reward_model import RewardModel
from areal_lit_algorithms.sft import SFT


def samples_of(case: Case) -> list[Sample]:
    samples = []
    for row in np.flatnonzero(case.is_trained):
        sample = Sample(
            group=int(case.group[row]), reward=float(case.reward[row]), truncated=bool(case.truncated[row]),
            final_value=float(case.final_value[row]),
        )  # fmt: skip
        for t in np.flatnonzero(case.mask[row]):
            turn_reward = float(case.turn_reward[row, t]) or None
            token = Token(turn=int(case.turn[row, t]), version=int(case.version[row, t]), turn_reward=turn_reward)
            token.logprob = float(case.current[row, t])
            for name in ("behaviour", "proximal", "reference", "value"):
                setattr(token, name, float(getattr(case, name)[row, t]))
            sample.tokens.append(token)
        samples.append(sample)
    return samples


def assert_total(step: Step | OfflineStep, case: Case, expected: Total) -> None:
    assert_number(step.loss, expected.loss, expected.size, f"loss of case {case.index}")
    assert_each(step.gradient, case, expected.slopes, "slope")
    if isinstance(step, Step):
        assert_each(step.advantage, case, expected.advantages, "advantage")


def assert_each(ours: Floats, case: Case, expected: Sequence[float], what: str) -> None:
    size = max(map(abs, expected))
    for place, (mine, other) in enumerate(zip(ours[case.mask].tolist(), expected, strict=True)):
        assert_number(mine, other, size, f"{what} {place} of case {case.index}")
    assert not ours[~case.mask].any()


@pytest.mark.parametrize("name", PUBLISHED)
def test_defaults_are_the_published_algorithm(name: str) -> None:
    assert_published(name, FAMILY[name]())


def assert_published(name: str, algorithm: PolicyGradient) -> None:
    for case in cases():
        assert_total(take_step(algorithm, case), case, policy_step(name, samples_of(case), step=case.step))


@pytest.mark.parametrize("wrong", MUTANTS)
def test_planted_mutants_are_not_the_published_algorithm(wrong: str) -> None:
    name, mutant = MUTANTS[wrong]
    with pytest.raises(AssertionError, match="of case"):
        assert_published(name, mutant)


# --- options -------------------------------------------------------------------------------------

BOUNDS = {"ratio": (0.8, 1.5), "k1": (-0.3, 0.4), "k2": (None, 0.2), "k3": (None, 0.2), "binary_kl": (None, 0.1)}
"""Within what spread policies are; each holds back some tokens or sequences."""


def rejections() -> list[Rejection | None]:
    """Every combination that there is."""
    made: list[Rejection | None] = [None, Rejection(lower=0.8, upper=None)]
    capped: Any = {"action": "mask", "metric": "binary_kl", "upper": 0.1, "weight_cap": 1.1}
    made += [Rejection(**capped), Rejection(level="sequence", **capped)]
    for level, aggregates in {"token": ("mean",), "sequence": ("sum", "mean", "max")}.items():
        for metric, (lower, upper) in BOUNDS.items():
            for action in ("mask", "clamp") if metric == "ratio" else ("mask",):
                for aggregate in aggregates:
                    kind: Any = {"level": level, "metric": metric, "action": action, "aggregate": aggregate}
                    made.append(Rejection(**kind, lower=lower, upper=upper))
    return made


POLICIES = ({"decoupled": True}, {"decoupled": False, "old": "proximal"}, {"decoupled": False, "old": "behaviour"})
KL = [
    {"kl_weight": 0.1, "kl_in": place, "kl_estimator": estimator}
    for place, estimators in {"loss": ("k2", "k3", "k3+"), "reward": ("k1", "k2", "k3")}.items()
    for estimator in estimators
]
AGGREGATIONS: list[dict[str, Any]] = [
    {"aggregation": name} for name in ("token_mean", "sequence_mean", "sequence_sum", "group_mean")
]
KL.append({"kl_weight": 0.0})
AGGREGATIONS.append({"aggregation": "constant", "max_length": 12})
REWARD_NORMS = (
    Normaliser(),
    Normaliser(unbiased_std=False, eps=1e-3),
    Normaliser(leave_one_out=True),
    Normaliser(std_level="none"),
    Normaliser(std_level="batch"),
    Normaliser(mean_level="batch"),
    Normaliser(mean_level="batch", std_level="batch", leave_one_out=True),
    Normaliser(mean_level="none", std_level="none"),
    Normaliser(mean_level="none", std_level="group_rms"),
    Normaliser(mean_level="none", std_level="batch_rms"),
)
SHAPINGS = (
    Shaping(),
    Shaping(reward_bias=0.1, reward_scaling=2.0, reward_clip=1.0),
    Shaping(overlong=Overlong(max_length=10, buffer=6, factor=0.5), reward_clip=0.9),
)
ADVANTAGE_NORMS = (None, Normaliser(mean_level="batch", std_level="batch"), Normaliser(mean_level="batch"))
SHARED: dict[str, Sequence[Any]] = {
    "policies": POLICIES, "rejection": rejections(), "kl": KL, "aggregations": AGGREGATIONS, "reward_shaping": SHAPINGS,
    "proximal": ("recompute", "loglinear", "linear", "current", "compare"), "advantage_norm": ADVANTAGE_NORMS,
    "entropy_weight": (0.0, 0.05),
}  # fmt: skip
NAMED = ("grpo", "gspo", "cispo", "rloo", "rloo_clipped", "reinforce_pp")
GROUPED = {**SHARED, "reward_norm": REWARD_NORMS, "clip_high": (0.2, 0.05), "clip_dual": (None, 1.2)}
GROUPED |= {"turn_discount": (1.0, 0.6), "name": NAMED}
CRITICS = {
    "policies": POLICIES, "kl": KL, "aggregations": AGGREGATIONS, "advantage_norm": ADVANTAGE_NORMS,
    "gamma": (1.0, 0.97), "lam": (0.95, 0.0, 1.0, LengthLambda(alpha=0.3), LengthLambda(q=0.5)),
    "critic_lam": (None, 1.0, LengthLambda(alpha=0.5)), "step_level": ("token", "turn"), "value_clip": (0.2, None),
    "value_loss": ("squared", "huber"),
}  # fmt: skip
NUM_STEPS = 200
"""At least as many, over all rows of options."""


def spread_out(row: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The algorithm's name, and its options one by one; what cannot go together is left at its neutral value."""
    options = {**row, **row["policies"], **row["kl"], **row["aggregations"]}
    for name in ("policies", "kl", "aggregations"):
        del options[name]
    name = options.pop("name", "ppo")
    if name == "cispo":
        del options["clip_dual"]
    if options.get("old") == "behaviour":
        options["rejection"] = None
    return name, options


def rows_of(options: dict[str, Sequence[Any]]) -> Iterator[tuple[Case, str, dict[str, Any]]]:
    """Each row of the options on some cases, in turn on all."""
    drawn, rows = cycle(cases()), pairwise(options)
    for row in rows:
        for case in islice(drawn, math.ceil(NUM_STEPS / len(rows))):
            yield case, *spread_out(row)


@pytest.mark.parametrize("options", [GROUPED, CRITICS], ids=["grouped", "critics"])
def test_every_two_options_together(options: dict[str, Sequence[Any]]) -> None:
    for case, name, chosen in rows_of(options):
        expected = policy_step(name, samples_of(case), step=case.step, **chosen)
        assert_total(take_step(FAMILY[name](**chosen), case), case, expected)


def test_every_critic() -> None:
    for case, _, chosen in rows_of(CRITICS):
        step = take_step(PPO(**chosen), case, "critic")
        expected = critic_step(samples_of(case), case.new_value[case.mask].tolist(), **chosen)
        assert_total(step, case, expected)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sapo", {"tau_pos": 2.0, "tau_neg": 0.5, "old": "behaviour", "rejection": None, "aggregation": "token_mean"}),
        ("sapo", {"rejection": Rejection(action="mask", lower=0.8, upper=1.5)}),
        ("m2po", {"m2_threshold": 0.01}),
        ("m2po", {"among": "all"}),
        ("m2po", {"m2_threshold": 0.5, "aggregation": "sequence_mean"}),
        ("cispo", {"clip_low": 0.2, "clip_high": 0.28}),
        ("reinforce_pp", {"gamma": 0.9, "turn_discount": 0.5}),
    ],
)
def test_an_algorithms_own_options(name: str, options: dict[str, Any]) -> None:
    for case in cases()[::3]:
        expected = policy_step(name, samples_of(case), step=case.step, **options)
        assert_total(take_step(FAMILY[name](**options), case), case, expected)


# --- offline -------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["sigmoid", "ipo", "hinge"])
@pytest.mark.parametrize("beta", [0.1, 0.4])
def test_dpo(loss: Any, beta: float) -> None:
    for case in cases():
        step = take_pair_step(DPO(loss=loss, beta=beta), case)
        assert_total(step, case, preference_step(samples_of(case), loss, beta))


def test_reward_model() -> None:
    for case in cases():
        step = take_pair_step(RewardModel(), case)
        loss, slopes = reward_model_step(case.final_value[case.pairs].tolist())
        assert_number(step.loss, loss, loss, f"loss of case {case.index}")
        assert step.gradient[case.pairs].ravel().tolist() == pytest.approx(slopes, abs=1e-6 * max(map(abs, slopes)))


@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=lambda a: a["aggregation"])
def test_sft(aggregation: dict[str, Any]) -> None:
    for case in cases():
        assert_total(take_offline_step(SFT(**aggregation), case), case, imitation_step(samples_of(case), **aggregation))
