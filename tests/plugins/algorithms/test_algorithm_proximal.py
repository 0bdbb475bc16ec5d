"""The five ways to the proximal policy, against the formulas and each other."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from algorithm_batches import make_batch, put
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_lit.testing.algorithm import check_algorithm
from areal_lit.token_batch import TokenBatch, TokenOutputs
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.proximal import interpolated, proximal_logprob, version_share


def batch_of(rows: list[tuple[float, float, int]], step: int) -> tuple[TokenBatch, torch.Tensor]:
    """One sequence of (behaviour, current, version) tokens."""
    batch = put(make_batch(GRPO(), [1], [0.0], [[1] * len(rows)]), "logprob", [[row[0] for row in rows]])
    version_T = torch.tensor([-1, *(row[2] for row in rows)])
    current_T = torch.tensor([0.0, *(row[1] for row in rows)], dtype=torch.float64)
    return replace(batch, columns={**batch.columns, "version": version_T}).with_scalars(step=float(step)), current_T


tokens = st.lists(st.tuples(st.floats(-8, -0.01), st.floats(-8, -0.01), st.integers(0, 8)), min_size=1, max_size=6)


@given(rows=tokens)
@settings(max_examples=60)
def test_estimates_lie_between_behaviour_and_current_by_version(rows: list[tuple[float, float, int]]) -> None:
    batch, current_T = batch_of(rows, step=8)
    loglinear = proximal_logprob("loglinear", current_T, batch)[1:].tolist()
    linear = proximal_logprob("linear", current_T, batch)[1:].tolist()
    for (behaviour, current, version), in_logs, in_probabilities in zip(rows, loglinear, linear, strict=True):
        alpha = (8 - version) / (9 - version)
        assert in_logs == pytest.approx(behaviour + alpha * (current - behaviour))
        mixed = (1 - alpha) * math.exp(behaviour) + alpha * math.exp(current)
        assert in_probabilities == pytest.approx(math.log(mixed))


def test_the_share_of_versions() -> None:
    versions = torch.tensor([9, 8, 7, 5, 0, 12])
    assert version_share(versions, 9).tolist() == pytest.approx([1.0, 0.0, 1 / 2, 3 / 4, 8 / 9, 1.0])


@pytest.mark.parametrize("way", ["loglinear", "linear"])
def test_estimates_have_no_gradient_and_reach_both_ends(way: Any) -> None:
    current_T = torch.tensor([-1.0, -2.0], requires_grad=True)
    result_T = interpolated(way, current_T, torch.tensor([-3.0, -4.0]), torch.tensor([0.0, 1.0]))
    assert result_T.tolist() == pytest.approx([-3.0, -2.0])
    assert not result_T.requires_grad


def test_recomputed_and_current() -> None:
    batch, current_T = batch_of([(-1.0, -2.0, 3)], step=4)
    batch = put(batch, "proximal", [[-1.5]])
    assert proximal_logprob("recompute", current_T, batch)[1:].tolist() == [-1.5]
    assert proximal_logprob("compare", current_T, batch)[1:].tolist() == [-1.5]
    assert proximal_logprob("current", current_T, batch)[1:].tolist() == [-2.0]


def test_compare_trains_as_recompute_does_and_tells_how_far_the_others_are() -> None:
    algorithms = GRPO(proximal="compare"), GRPO(proximal="recompute")
    batch, current_T = batch_of([(-1.0, -2.0, 4), (-1.0, -2.0, 3)], step=4)
    batch = put(batch, "proximal", [[-1.0, -1.5]])
    compared, plain = (
        algorithm.policy_objective(TokenOutputs(logprob_T=current_T), algorithm.prepare(batch))
        for algorithm in algorithms
    )
    assert torch.equal(compared.values, plain.values)
    metrics = {m.name: m.value for m in compared.metrics}
    assert metrics["proximal_gap_loglinear"] == pytest.approx(0.0)
    assert metrics["proximal_gap_current"] == pytest.approx(0.75)
    mixed = math.log((math.exp(-1) + math.exp(-2)) / 2)
    assert metrics["proximal_gap_linear"] == pytest.approx(abs(mixed + 1.5) / 2)


@pytest.mark.parametrize("way", ["loglinear", "linear", "current", "compare"])
def test_conformance(way: Any) -> None:
    check_algorithm(GRPO(proximal=way), rounds=1)


@pytest.mark.parametrize(
    ("way", "needs"), [("recompute", {"proximal"}), ("compare", {"proximal"}), ("loglinear", set()), ("linear", set())]
)
def test_only_recomputing_needs_a_forward_pass(way: Any, needs: set[str]) -> None:
    assert GRPO(proximal=way).needs == needs
