"""Diagnostics: each says what it is named for, and displays know what it is called and counted in."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from algorithm_batches import make_batch, put
from algorithm_family import FAMILY

from areal_lit.measures import measure_of
from areal_lit.rollout.metrics import consumed_metrics
from areal_lit.testing.algorithm_case import AlgorithmCase
from areal_lit.testing.filter import make_group
from areal_lit.testing.toy import RaggedGroups
from areal_lit.token_batch import TokenOutputs
from areal_lit.types import merge_metrics
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.diagnostics import explained_variance, ratio_metrics
from areal_lit_algorithms.pieces.rejection import Rejection
from areal_lit_algorithms.process_reward import ProcessReward


def test_the_divergence_is_that_of_the_older_policy_from_the_newer_one() -> None:
    """Over all outcomes of an older policy that draws each of four with equal chance."""
    newer_T = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).log()
    older_T = torch.full((4,), 0.25, dtype=torch.float64).log()
    metrics = {m.name: m.value for m in ratio_metrics("old", newer_T, older_T, torch.ones(4, dtype=torch.bool))}
    assert metrics["kl_old"] == pytest.approx(sum(0.25 * math.log(0.25 / p) for p in (0.1, 0.2, 0.3, 0.4)))
    assert (metrics["ratio_old"], metrics["ratio_old_max"]) == (pytest.approx(1.0), pytest.approx(1.6))


def test_policies_that_hardly_differ_have_no_negative_divergence() -> None:
    older_T = torch.linspace(-9.0, -0.1, 200)
    metrics = {
        m.name: m.value for m in ratio_metrics("old", older_T + 1e-6, older_T, torch.ones(200, dtype=torch.bool))
    }
    assert 0 <= metrics["kl_old"] < 1e-11


def test_completions_without_scores_of_steps_are_counted_among_those_that_are_trained() -> None:
    """Two are scored, one has tokens and no score, one has its score outside its loss tokens, one is unscored."""
    algorithm = ProcessReward()
    batch = make_batch(algorithm, [1] * 5, [1.0, 0.0, 1.0, 1.0, None], [[1, 1], [1], [1, 1], [1, 0], [1]])
    batch = put(batch, "turn_reward", [[0.5, 1.0], [0.0], [0.0, 0.0], [0.0, 1.0], [1.0]])
    scored = put(batch, "turn_scored", [[1, 1], [1], [0, 0], [0, 1], [1]])["turn_scored"].bool()
    prepared = algorithm.prepare(replace(batch, columns={**batch.columns, "turn_scored": scored}))
    metrics = {metric.name: metric.value for metric in algorithm.step_metrics(prepared)}
    assert metrics["train/without_step_scores"] == 2 / 4
    is_bare_T = (prepared["segment"] == 2) | (prepared["segment"] == 3)
    assert prepared["advantage"][is_bare_T].tolist() == [0.0] * 6


def test_three_policies_are_compared_pair_by_pair() -> None:
    algorithm = GRPO()
    batch = make_batch(algorithm, [1, 1], [1.0, 0.0], [[1, 0], [1, 1]])
    batch = put(put(batch, "logprob", [[-2.0, 9.0], [-2.0, -1.0]]), "proximal", [[-1.5, 9.0], [-2.0, -1.0]])
    weighed = algorithm.weigh(algorithm.prepare(batch))
    current_T = put(batch, "logprob", [[-1.4, 5.0], [-2.0, -1.3]])["logprob"]
    metrics = {m.name: m.value for m in algorithm.policy_objective(TokenOutputs(logprob_T=current_T), weighed).metrics}
    apart = {"behaviour": (0.6, 0.0, -0.3), "proximal": (0.1, 0.0, -0.3), "off_policy": (0.5, 0.0, 0.0)}
    for name, logs in apart.items():
        ratios = [math.exp(x) for x in logs]
        assert metrics[f"ratio_{name}"] == pytest.approx(sum(ratios) / 3)
        assert metrics[f"ratio_{name}_max"] == pytest.approx(max(ratios))
        assert metrics[f"kl_{name}"] == pytest.approx(sum(r - 1 - x for r, x in zip(ratios, logs, strict=True)) / 3)


@pytest.mark.parametrize(("action", "weights"), [("mask", [0.0, 0.0, 1.0]), ("clamp", [1.2, 0.8, 1.0])])
def test_weights_bounds_divergence_and_entropy_are_of_the_tokens_that_are_trained(
    action: Any, weights: list[float]
) -> None:
    """The proximal policy is e^0.5, e^-0.4 and 1 times as likely to draw them; masked-out numbers stand beside."""
    rejection = Rejection(action=action, lower=0.8, upper=1.2)
    algorithm = GRPO(rejection=rejection, kl_weight=0.1, with_entropy=True)
    batch = make_batch(algorithm, [1, 1], [1.0, 0.0], [[1, 0], [1, 1]])
    columns = {
        "logprob": [[-2.0, 9.0], [-2.0, -1.0]], "proximal": [[-1.5, -9.0], [-2.4, -1.0]],
        "reference": [[-1.7, 9.0], [-2.1, -1.0]],
    }  # fmt: skip
    for name, rows in columns.items():
        batch = put(batch, name, rows)
    current_T = put(batch, "logprob", [[-1.5, 7.0], [-2.4, -1.0]])["logprob"]
    entropy_T = put(batch, "entropy", [[0.3, 50.0], [0.6, 1.2]])["entropy"]
    outputs = TokenOutputs(logprob_T=current_T, entropy_T=entropy_T)
    loss = algorithm.policy_objective(outputs, algorithm.weigh(algorithm.prepare(batch)))
    metrics = {m.name: replace(m, name=f"train/{m.name}") for m in loss.metrics}
    expected = {
        "rejected_high": 1 / 3, "rejected_low": 1 / 3, "entropy": 0.7,
        "off_policy_weight": sum(weights) / 3, "off_policy_weight_square": sum(w * w for w in weights) / 3,
        "kl_reference": sum(math.exp(-x) - 1 + x for x in (0.2, -0.3, 0.0)) / 3,
    }  # fmt: skip
    assert {name: metrics[name].value for name in expected} == pytest.approx(expected)
    derived = {m.name: m.value for m in algorithm.end_step({m.name: m for m in metrics.values()})}
    share = sum(weights) ** 2 / (3 * sum(w * w for w in weights))
    assert derived == {"train/effective_sample_size": pytest.approx(share), "train/kl_weight": 0.1}


def test_a_critic_explains_what_its_errors_leave_of_the_spread_of_returns() -> None:
    """Returns 0, 0, 2, 4 have variance 2.75; errors 0, 1, 1, 0 have 0.25, as those of any constant more."""
    returns, values = torch.tensor([0.0, 0.0, 2.0, 4.0]), torch.tensor([0.0, 1.0, 3.0, 4.0])
    assert explained_variance(values, returns) == pytest.approx(1 - 0.25 / 2.75)
    assert explained_variance(values + 7, returns) == pytest.approx(1 - 0.25 / 2.75)
    assert explained_variance(torch.full((4,), 9.0), returns) == 0.0
    assert explained_variance(-returns, returns) == pytest.approx(-3.0)
    assert math.isnan(explained_variance(values, torch.ones(4)))


@pytest.mark.parametrize("name", FAMILY)
def test_every_metric_has_a_title_and_a_unit(name: str) -> None:
    algorithm = pickle.loads(pickle.dumps(FAMILY[name](kl_weight=0.1, **_estimator(name), with_entropy=True)))
    case = AlgorithmCase(algorithm=algorithm, draw=RaggedGroups(), seed=0)
    batch = case.packed(case.groups())
    metrics = merge_metrics(list(algorithm.step_metrics(algorithm.prepare(batch))))
    for full_name, metric in case.step(batch).metrics.items():
        role, _, rest = full_name.partition("/")
        metrics[f"train/{rest}" if role == "policy" else full_name] = metric
    metrics |= merge_metrics(list(algorithm.end_step(metrics)))
    assert {"train/zero_variance_groups", "train/advantage_std", "train/reward_raw_mean", "train/entropy"} <= set(
        metrics
    )
    assert [each for each in metrics if measure_of(each).title == each] == []


def _estimator(name: str) -> dict[str, str]:
    return {} if name == "reinforce_pp" else {"kl_estimator": "k3"}


def test_parts_of_a_reward_have_moments_of_their_own() -> None:
    group = make_group((0.0, 1.0, None))
    parts = [{"right": 0.0, "form": 2.0}, {"right": 1.0, "form": 2.0}, {}]
    members = zip(group.trajectories, parts, strict=True)
    group = replace(group, trajectories=tuple(replace(t, reward_parts=p, metrics={"calls": 3.0}) for t, p in members))
    reported = {m.name: m.value for m in consumed_metrics([group, group], 1, by_source=False)}
    found = {end: reported[f"rollout/reward/right{end}"] for end in ("", "_std", "_min", "_max")}
    assert found == {"": 0.5, "_std": 0.5, "_min": 0.0, "_max": 1.0}
    assert (reported["rollout/reward/form"], reported["rollout/reward/form_std"]) == (2.0, 0.0)
    assert reported["rollout/metrics/calls"] == 3.0
    assert "rollout/metrics/calls_std" not in reported


def test_staleness_has_quantiles_over_tokens() -> None:
    group = make_group((1.0,) * 4, num_tokens=26)
    ages = [0, 0, 1, 8]
    members = zip(group.trajectories, ages, strict=True)
    aged = tuple(replace(t, versions=np.where(t.loss_mask, 9 - age, -1)) for t, age in members)
    reported = {m.name: m.value for m in consumed_metrics([replace(group, trajectories=aged)], 9, by_source=False)}
    assert [reported[f"rollout/staleness{end}"] for end in ("", "_median", "_p95", "_max")] == [2.25, 0.0, 8.0, 8.0]
