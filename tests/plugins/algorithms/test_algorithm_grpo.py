"""GRPO: hand-computed numbers, the sign, what it needs and refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from algorithm_batches import make_batch, put

from areal_lit.testing.algorithm import check_algorithm
from areal_lit.token_batch import TokenBatch, TokenOutputs, weighted_sum
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.normalisation import Normaliser
from areal_lit_algorithms.pieces.rejection import Rejection
from areal_lit_algorithms.pieces.shaping import Overlong, Shaping


def step(
    algorithm: GRPO, batch: TokenBatch, current: list[list[float]]
) -> tuple[float, torch.Tensor, dict[str, float]]:
    """Loss, its gradient in the log-probs without the prompt tokens, and metrics."""
    weighed = algorithm.weigh(algorithm.prepare(batch))
    logprob_T = put(batch, "logprob", current)["logprob"].requires_grad_()
    loss = algorithm.objectives()["policy"](TokenOutputs(logprob_T=logprob_T), weighed)
    total = weighted_sum(loss, weighed)
    (gradient,) = torch.autograd.grad(total, logprob_T)
    return total.item(), gradient[batch["position"] > 0], {m.name: m.value for m in loss.metrics}


def test_by_hand() -> None:
    algorithm = GRPO(reward_norm=Normaliser(std_level="none"), decoupled=False, old="behaviour")
    batch = make_batch(algorithm, [1, 1], [2.0, 0.0], [[1], [1]])
    ratio = torch.tensor([1.5, 0.5]).log().tolist()
    loss, gradient, metrics = step(algorithm, batch, [[ratio[0]], [ratio[1]]])
    # advantages are 1 and -1; both ratios are past their bound
    assert loss == pytest.approx((-1.2 + 0.8) / 2)
    assert gradient.tolist() == [0.0, 0.0]
    assert (metrics["clip_high"], metrics["clip_low"]) == (0.5, 0.5)
    assert metrics["ratio_behaviour"] == pytest.approx(1.0)
    assert "ratio_proximal" not in metrics


def test_the_gradient_raises_what_was_better() -> None:
    batch = make_batch(GRPO(), [1, 1], [1.0, 0.0])
    _, gradient, _ = step(GRPO(proximal="current"), batch, [[0.0, 0.0]] * 2)
    assert (gradient[:2] < 0).all()
    assert (gradient[2:] > 0).all()


def test_decoupled_and_naive_are_told_apart_by_both_ratios() -> None:
    algorithm = GRPO(rejection=Rejection(upper=1.25))
    batch = make_batch(algorithm, [1, 1], [1.0, 0.0], [[1], [1]])
    batch = put(put(batch, "logprob", [[-2.0], [-2.0]]), "proximal", [[-1.5], [-2.0]])
    _, _, metrics = step(algorithm, batch, [[-1.4], [-2.0]])
    e = torch.tensor([0.6, 0.1]).exp().tolist()
    assert metrics["ratio_behaviour"] == pytest.approx((e[0] + 1) / 2)
    assert metrics["ratio_proximal"] == pytest.approx((e[1] + 1) / 2)
    assert metrics["ratio_proximal_max"] == pytest.approx(e[1])
    assert metrics["off_policy_weight"] == pytest.approx((1.25 + 1) / 2)
    assert metrics["rejected_high"] == 0.5


def test_current_proximal_is_the_recomputed_one_on_the_first_minibatch() -> None:
    batch = make_batch(GRPO(), [1, 1, 1], [1.0, 0.0, 0.3])
    current = [[-1.0, -0.5], [-0.2, -3.0], [-0.7, -0.9]]
    batch = put(put(batch, "logprob", [[-1.2, -0.5], [-0.3, -2.5], [-0.7, -1.5]]), "proximal", current)
    recomputed, taken = (step(GRPO(proximal=p), batch, current) for p in ("recompute", "current"))
    assert recomputed[0] == pytest.approx(taken[0])
    assert torch.allclose(recomputed[1], taken[1])


def test_huge_ratios_and_groups_without_advantage_stay_finite() -> None:
    algorithm = GRPO(decoupled=False, old="behaviour")
    batch = put(make_batch(algorithm, [1, 1], [1.0, 1.0], [[1], [1]]), "logprob", [[-500.0], [-1.0]])
    loss, gradient, _ = step(algorithm, batch, [[-0.1], [-1.0]])
    assert loss == 0.0
    assert gradient.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("settings", "needs"),
    [
        ({}, {"proximal"}),
        ({"proximal": "current"}, set()),
        ({"decoupled": False}, {"proximal"}),
        ({"decoupled": False, "old": "behaviour"}, set()),
        ({"kl_weight": 0.1, "entropy_weight": 0.1}, {"proximal", "reference", "entropy"}),
        ({"with_entropy": True}, {"proximal", "entropy"}),
    ],
)
def test_needs_follow_the_settings(settings: dict[str, Any], needs: set[str]) -> None:
    assert GRPO(**settings).needs == needs


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"reward_norm": Normaliser(std_level="none"), "aggregation": "constant", "max_length": 16},
        {"proximal": "current", "aggregation": "group_mean"},
        {"decoupled": False, "old": "behaviour", "clip_dual": 3.0},
        {"kl_weight": 0.1, "entropy_weight": 0.01, "aggregation": "sequence_mean"},
        {"kl_weight": 0.1, "kl_estimator": "k3"},
        {"kl_weight": 0.1, "kl_estimator": "k3+", "decoupled": False},
    ],
)
def test_conformance(settings: dict[str, Any]) -> None:
    check_algorithm(GRPO(**settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_low": 0.0}, r"clip_low must be in \(0, 1\], got 0.0"),
        ({"clip_high": -0.1}, "clip_high must be > 0, got -0.1"),
        ({"clip_dual": 1.0}, "clip_dual must be > 1"),
        ({"old": "behaviour"}, "decoupled clips around the proximal policy"),
        ({"kl_weight": -1.0}, "kl_weight must be finite and >= 0, got -1.0"),
    ],
)
def test_wrong_arguments_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GRPO(**settings)


def trainer(*, num_minibatches: int = 1, samples_per_group: int = 8) -> Any:
    rollout = SimpleNamespace(samples_per_group=samples_per_group)
    return SimpleNamespace(num_minibatches=num_minibatches, rollout=rollout)


def test_rules_name_what_cannot_work() -> None:
    assert list(GRPO().rules(trainer())) == []
    assert list(GRPO(proximal="current").rules(trainer())) == []
    (broken,) = GRPO(proximal="current").rules(trainer(num_minibatches=2))
    assert "one mini-batch only" in broken
    (broken,) = GRPO().rules(trainer(samples_per_group=1))
    assert "rollout.samples_per_group is 1" in broken


def test_step_metrics_show_advantages_rewards_and_groups() -> None:
    algorithm = GRPO(reward_norm=Normaliser(std_level="none"))
    batch = algorithm.prepare(make_batch(algorithm, [1, 1, 2, 2], [3.0, 1.0, 5.0, 5.0], [[1], [1], [1], [1]]))
    values = {m.name.removeprefix("train/"): m.value for m in algorithm.step_metrics(batch)}
    groups = {"zero_variance_groups": 0.5, "single_groups": 0.0, "empty_groups": 0.0}
    advantage = {"advantage_mean": 0.0, "advantage_std": 0.5**0.5, "advantage_max": 1.0, "advantage_min": -1.0}
    reward = {"reward_raw_mean": 3.5, "reward_raw_std": 2.75**0.5, "reward_raw_max": 5.0, "reward_raw_min": 1.0}
    assert values == pytest.approx(groups | advantage | reward)


def test_groups_without_variance_are_those_of_equal_shaped_rewards() -> None:
    """Clipped, 3 and 2 are one reward; with a penalty on length, 1 and 1 are two."""

    def share(shaping: Shaping, rewards: list[float], masks: list[list[int]]) -> float:
        algorithm = GRPO(reward_shaping=shaping)
        batch = algorithm.prepare(make_batch(algorithm, [1, 1], rewards, masks))
        values = {metric.name: metric.value for metric in algorithm.step_metrics(batch)}
        assert values["train/zero_variance_groups"] == float(not batch["advantage"].any())
        return values["train/zero_variance_groups"]

    assert share(Shaping(reward_clip=1.0), [3.0, 2.0], [[1], [1]]) == 1.0
    assert share(Shaping(overlong=Overlong(max_length=4, buffer=4)), [1.0, 1.0], [[1], [1, 1, 1]]) == 0.0
