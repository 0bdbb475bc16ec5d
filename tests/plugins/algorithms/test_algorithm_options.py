"""What the family asks of a run, refuses, and reports at the end of a step."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from algorithm_batches import make_batch, put

from areal_lit import recipes
from areal_lit.plugins import Plugins
from areal_lit.testing.algorithm import check_algorithm
from areal_lit.token_batch import TokenOutputs
from areal_lit.types import Metric
from areal_lit_algorithms.cispo import CISPO
from areal_lit_algorithms.dapo import DAPO
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.m2po import M2PO
from areal_lit_algorithms.pieces.gae import LengthLambda
from areal_lit_algorithms.pieces.normalisation import Normaliser
from areal_lit_algorithms.pieces.rejection import Rejection
from areal_lit_algorithms.pieces.shaping import Overlong, Shaping
from areal_lit_algorithms.ppo import PPO
from areal_lit_algorithms.reinforce_pp import ReinforcePP
from areal_lit_algorithms.sapo import SAPO
from areal_lit_filters.equal_rewards import EqualRewards


def trainer(**changes: Any) -> Any:
    rollout = SimpleNamespace(samples_per_group=changes.pop("samples", 8), sampling=SimpleNamespace(max_new_tokens=16))
    return SimpleNamespace(**{"rollout": rollout, "num_minibatches": 1, "filters": (), "max_steps": None, **changes})


def test_dapo_insists_on_dynamic_sampling_and_a_penalty_that_can_be_reached() -> None:
    shaping = Shaping(overlong=Overlong(max_length=16, buffer=4))
    (rule,) = DAPO(reward_shaping=shaping).rules(trainer())
    assert "add `filters: [equal_rewards]`, or set dynamic_sampling to false" in rule
    run = trainer()
    run.filters = (EqualRewards(),)
    assert list(DAPO(reward_shaping=shaping).rules(run)) == []
    assert list(DAPO(reward_shaping=shaping, dynamic_sampling=False).rules(trainer())) == []
    far = Shaping(overlong=Overlong(max_length=20, buffer=4))
    (rule,) = DAPO(reward_shaping=far).rules(run)
    assert "begins beyond 16 tokens, which no completion of rollout.sampling.max_new_tokens 16 reaches" in rule


def test_only_who_compares_within_groups_needs_two_samples() -> None:
    for norm in (Normaliser(), Normaliser(mean_level="batch"), Normaliser(std_level="batch")):
        (rule,) = GRPO(reward_norm=norm).rules(trainer(samples=1))
        assert "sample at least 2 per prompt, or choose an algorithm that compares none (ppo, reinforce_pp)" in rule
    assert list(GRPO(reward_norm=Normaliser(mean_level="batch", std_level="batch")).rules(trainer(samples=1))) == []
    assert list(ReinforcePP().rules(trainer(samples=1))) == []
    assert list(PPO().rules(trainer(samples=1))) == []


@pytest.mark.parametrize(
    ("changes", "is_told"),
    [
        ({}, True),
        ({"reward": {"class_path": "composite", "init_args": {"parts": {"right": "exact_match"}}}}, True),
        ({"algorithm": {"class_path": "process_reward", "init_args": {"outcome_weight": 0.5}}}, False),
        ({"reward": {"class_path": "steps", "init_args": {"step": "exact_match"}}}, False),
        (
            {"reward": {"class_path": "composite", "init_args": {"parts": {
                "right": "exact_match", "steps": {"class_path": "steps", "init_args": {"step": "exact_match"}},
            }}}},
            False,
        ),
        ({"reward": {"class_path": "function", "init_args": {"function": "operator.neg"}}}, False),
    ],
)  # fmt: skip
def test_process_reward_is_told_before_it_starts_that_nothing_scores_steps(
    changes: dict[str, Any], is_told: bool
) -> None:
    run = recipes.load({"base": "quickstart", "algorithm": "process_reward"}, changes)
    rules = list(run.algorithm.rules(run))
    assert [rule.startswith("no step is scored by reward ") for rule in rules] == [True] * is_told


def test_a_warmup_trains_the_critic_alone() -> None:
    algorithm = PPO(value_warmup_steps=2)
    assert [algorithm.is_trained("policy", step) for step in range(4)] == [False, False, True, True]
    assert all(algorithm.is_trained("critic", step) for step in range(4))
    (rule,) = algorithm.rules(trainer(max_steps=2))
    assert "value_warmup_steps 2 trains the critic alone for all of max_steps 2, and the policy never" in rule
    assert [list(algorithm.rules(trainer(max_steps=steps))) for steps in (3, None)] == [[], []]


@pytest.mark.parametrize(
    ("algorithm", "needs"),
    [
        (PPO(), {"proximal", "values"}),
        (ReinforcePP(), {"proximal", "reference"}),
        (SAPO(), {"proximal"}),
        (M2PO(), {"proximal"}),
        (CISPO(decoupled=False, old="behaviour"), set()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_needs(algorithm: Any, needs: set[str]) -> None:
    assert algorithm.needs == needs


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GRPO(turn_discount=1.5), r"turn_discount must be in \[0, 1\], got 1.5"),
        (
            lambda: GRPO(decoupled=False, old="behaviour", rejection=Rejection(action="mask")),
            "rejection masks by comparing with the proximal policy, got old 'behaviour'",
        ),
        (lambda: PPO(gamma=1.1), r"gamma must be in \[0, 1\], got 1.1"),
        (lambda: PPO(turn_discount=0.5), "turn_discount is for rewards without a critic, got 0.5"),
        (lambda: PPO(critic_lam=-0.5), r"critic_lam must be in \[0, 1\], got -0.5"),
        (lambda: PPO(value_clip=0.0), "value_clip must be > 0"),
        (lambda: PPO(value_warmup_steps=-1), "value_warmup_steps must be >= 0, got -1"),
        (lambda: ReinforcePP(gamma=2.0), r"gamma must be in \[0, 1\], got 2.0"),
        (lambda: SAPO(tau_neg=0.0), "tau_pos and tau_neg must be finite and > 0, got 1.0 and 0.0"),
        (lambda: M2PO(m2_threshold=0.0), "m2_threshold must be > 0, got 0.0"),
        (lambda: CISPO(clip_low=2.0), r"clip_low must be in \(0, 1\], got 2.0"),
        (lambda: Normaliser(mean_level="none"), "say 'group_rms' if that is meant"),
        (
            lambda: Normaliser(mean_level="none", std_level="none", leave_one_out=True),
            "leave_one_out is about the mean",
        ),
        (lambda: Normaliser(eps=-1.0), "eps must be finite and >= 0, got -1.0"),
    ],
)
def test_what_cannot_be_meant_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_the_effective_sample_size_is_of_the_whole_step() -> None:
    """Weights 1, 1, 4: (1 + 1 + 4)^2 / (3 (1 + 1 + 16)), from sums that merge over mini-batches."""
    weight = Metric(name="train/off_policy_weight", sum=6.0, count=3.0)
    square = Metric(name="train/off_policy_weight_square", sum=18.0, count=3.0)
    reported = GRPO().end_step({metric.name: metric for metric in (weight, square)})
    assert {m.name: m.value for m in reported} == {"train/effective_sample_size": pytest.approx(36 / 54)}
    nothing = {m.name: Metric(name=m.name, sum=0.0, count=3.0) for m in (weight, square)}
    assert [m.value for m in GRPO().end_step(nothing)] == [0.0]
    assert list(GRPO().end_step({})) == []


@pytest.mark.parametrize(
    ("log_ratios", "among", "weights"),
    [
        ([8.0, -0.1, 0.3], "pushed_on", [0.0, math.exp(-0.1), math.exp(0.3)]),
        ([0.1, -0.1, 9.0], "pushed_on", [math.exp(0.1), math.exp(-0.1), math.exp(9.0)]),
        ([8.0, 8.0, -5.0], "pushed_on", [0.0, 0.0, math.exp(-5.0)]),
        ([8.0, 9.0, -5.0], "all", [0.0, 0.0, math.exp(-5.0)]),
    ],
)
def test_what_m2po_pushes_on_is_bounded_and_what_its_weights_leave_is_told(
    log_ratios: list[float], among: Any, weights: list[float]
) -> None:
    """Advantages above 0 for two tokens and below for the third, which ratios above 1 would bring back."""
    algorithm = M2PO(among=among)
    batch = make_batch(algorithm, [1, 1], [1.0, 0.0], [[1, 1], [1]])
    batch = put(batch, "proximal", [log_ratios[:2], log_ratios[2:]])
    weighed = algorithm.weigh(algorithm.prepare(batch))
    loss = algorithm.policy_objective(TokenOutputs(logprob_T=batch["proximal"]), weighed)
    advantage = weighed["advantage"][batch["loss_mask"]].tolist()
    expected = [-weight * a for weight, a in zip(weights, advantage, strict=True)]
    assert loss.values[batch["loss_mask"]].tolist() == pytest.approx(expected)
    metrics = {f"train/{m.name}": replace(m, name=f"train/{m.name}") for m in loss.metrics}
    assert metrics["train/m2_dropped"].value == pytest.approx(weights.count(0.0) / 3)
    reported = algorithm.end_step(metrics)
    share = sum(weights) ** 2 / (3 * sum(w * w for w in weights))
    assert {m.name: m.value for m in reported} == {"train/effective_sample_size": pytest.approx(share)}


def test_a_recipe_sets_single_values_of_a_piece() -> None:
    """What is not named keeps the value that the algorithm gives it, which may not be the piece's own."""

    def algorithm(*overrides: str) -> Any:
        return recipes.load("quickstart_inline", overrides=[f"algorithm.{o}" for o in overrides]).algorithm

    icepop = algorithm("class_path=icepop", "old=proximal", "decoupled=true", "rejection.upper=3")
    assert icepop.rejection == Rejection(action="mask", lower=0.5, upper=3.0)
    assert algorithm("class_path=lite_ppo", "reward_norm.eps=0.1").reward_norm == Normaliser(std_level="batch", eps=0.1)
    assert algorithm("class_path=grpo", "rejection=null").rejection is None
    assert algorithm("class_path=ppo", "lam.alpha=0.05").lam == LengthLambda(alpha=0.05)
    assert algorithm("class_path=ppo", "critic_lam=1.0").critic_lam == 1.0


@pytest.mark.parametrize(
    "algorithm",
    [
        GRPO(rejection=Rejection(level="sequence", action="mask", metric="k3", aggregate="max", upper=0.1)),
        GRPO(rejection=Rejection(level="sequence", aggregate="sum", lower=0.5, upper=2.0)),
        GRPO(decoupled=False, rejection=Rejection(action="mask", lower=0.5, upper=2.0), turn_discount=0.5),
        GRPO(kl_weight=0.1, kl_in="reward", kl_estimator="k1", target_kl=0.01, aggregation="sequence_sum"),
        GRPO(reward_norm=Normaliser(mean_level="none", std_level="batch_rms")),
        GRPO(reward_norm=Normaliser(mean_level="batch")),
        GRPO(advantage_norm=Normaliser(mean_level="batch", std_level="batch"), entropy_weight=0.01),
        PPO(step_level="turn", lam=LengthLambda(alpha=0.2), critic_lam=1.0, value_loss="huber", advantage_norm=None),
        PPO(lam=LengthLambda(q=0.5), kl_weight=0.1, kl_in="reward", kl_estimator="k3"),
    ],
    ids=range(9),
)
def test_conformance_of_options(algorithm: Any) -> None:
    check_algorithm(algorithm, rounds=1)


def test_every_name_is_found() -> None:
    names = set(Plugins.discover().names("algorithm"))
    assert names >= {
        "ppo", "grpo", "dr_grpo", "dapo", "lite_ppo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "gspo", "sapo",
        "cispo", "m2po", "icepop", "kpop",
    }  # fmt: skip
