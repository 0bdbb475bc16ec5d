"""Policy and value losses by hand, and shaping of rewards."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from algorithm_batches import make_batch

from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.policy_losses import clipped_ratio, clipped_weight, soft_gate
from areal_lit_algorithms.pieces.ratios import ratio, sequence_log_ratio
from areal_lit_algorithms.pieces.second_moment import within_second_moment
from areal_lit_algorithms.pieces.shaping import Overlong, Shaping
from areal_lit_algorithms.pieces.value_loss import clipped_value

RATIO = torch.tensor([0.5, 0.5, 1.5, 1.5, 8.0, 1.0], dtype=torch.float64)
ADVANTAGE = torch.tensor([2.0, -2.0, 2.0, -2.0, -2.0, 0.0], dtype=torch.float64)
EVERY = torch.ones(6, dtype=torch.bool)


def slopes(loss: Any) -> tuple[list[float], list[float], dict[str, float]]:
    """Values, slopes in the log-ratio, and metrics of ``loss(log_ratio)``."""
    log_ratio = RATIO.log().requires_grad_()
    values, metrics = loss(log_ratio)
    (gradient,) = torch.autograd.grad(values.sum(), log_ratio)
    return values.tolist(), gradient.tolist(), {m.name: m.value for m in metrics}


def test_clipped_ratio() -> None:
    values, gradient, metrics = slopes(
        lambda x: clipped_ratio(x, ADVANTAGE, EVERY, clip_low=0.2, clip_high=0.3, clip_dual=3.0)
    )
    assert values == pytest.approx([-1.0, 1.6, -2.6, 3.0, 6.0, 0.0])
    assert gradient == pytest.approx([-1.0, 0.0, 0.0, 3.0, 0.0, 0.0])
    assert metrics == pytest.approx({"clip_low": 1 / 6, "clip_high": 1 / 6, "clip_dual": 1 / 6})


def test_each_bound_counts_its_own_tokens() -> None:
    """Below: bad tokens that became rarer; above: good ones that became likelier; the others are free to return."""
    ratio_T = torch.tensor([0.5, 0.7, 0.5, 1.5, 1.5, 1.1], dtype=torch.float64)
    advantage_T = torch.tensor([-1.0, -1.0, 1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
    _, metrics = clipped_ratio(ratio_T.log(), advantage_T, EVERY, clip_low=0.2, clip_high=0.2)
    assert {m.name: m.value for m in metrics} == pytest.approx({"clip_low": 2 / 6, "clip_high": 1 / 6})


def test_clipped_weight_bounds_the_weight_and_keeps_every_gradient() -> None:
    values, gradient, metrics = slopes(lambda x: clipped_weight(x, x, ADVANTAGE, EVERY, clip_low=0.2, clip_high=0.3))
    assert gradient == pytest.approx([-1.6, 1.6, -2.6, 2.6, 2.6, 0.0])
    assert values == pytest.approx([g * x for g, x in zip(gradient, RATIO.log().tolist(), strict=True)])
    assert metrics == pytest.approx({"clip_low": 2 / 6, "clip_high": 3 / 6})


def test_soft_gate() -> None:
    _, gradient, metrics = slopes(lambda x: soft_gate(x, ADVANTAGE, EVERY, tau_pos=1.0, tau_neg=2.0))

    def slope(r: float, tau: float) -> float:
        sigmoid = 1 / (1 + math.exp(-tau * (r - 1)))
        return 4 * sigmoid * (1 - sigmoid)

    taus = [1.0, 2.0, 1.0, 2.0, 2.0, 2.0]
    expected = [slope(r, tau) for r, tau in zip(RATIO.tolist(), taus, strict=True)]
    assert gradient == pytest.approx(
        [-a * s * r for a, s, r in zip(ADVANTAGE.tolist(), expected, RATIO.tolist(), strict=True)]
    )
    assert metrics["gate_slope"] == pytest.approx(sum(expected) / 6)


def test_a_sequence_has_one_ratio_and_each_token_its_share_of_the_gradient() -> None:
    batch = make_batch(GRPO(), [1, 1], [0.0, 0.0], [[1, 0, 1], [1]])
    log_ratio_T = torch.tensor([0.0, 0.2, 0.0, 0.6, 0.0, -0.3], dtype=torch.float64, requires_grad=True)
    shared_T = sequence_log_ratio(log_ratio_T, batch)
    assert shared_T[batch["loss_mask"]].tolist() == pytest.approx([0.4, 0.4, -0.3])
    mean_T = torch.tensor([0, 0.5, 0, 0.5, 0, 1.0], dtype=torch.float64)
    (gradient_T,) = torch.autograd.grad((mean_T * ratio(shared_T)).sum(), log_ratio_T)
    assert gradient_T.tolist() == pytest.approx([0, math.exp(0.4) / 2, 0, math.exp(0.4) / 2, 0, math.exp(-0.3)])


@pytest.mark.parametrize(
    ("log_ratios", "threshold", "kept"),
    [
        ([0.1, -0.5, 0.2], 0.04, [True, False, True]),
        ([0.1, 0.25], 0.04, [True, True]),
        ([0.1, 0.3], 0.04, [True, False]),
        ([0.1, -0.1, 0.1], 0.04, [True, True, True]),
        ([0.3, -0.3, 0.1], 0.03, [False, False, True]),
        ([1.0, -1.0], 0.04, [True, True]),
        ([1.0, 2.0], 0.04, [True, False]),
        ([0.2], 0.04, [True]),
        ([], 0.04, []),
    ],
)
def test_the_second_moment_of_what_stays_is_below_its_bound(
    log_ratios: list[float], threshold: float, kept: list[bool]
) -> None:
    """0.3 alone would fit beside 0.1 under 0.05 and not under 0.03; equal ones go together; the smallest stay."""
    assert within_second_moment(torch.tensor(log_ratios), threshold).tolist() == kept


@pytest.mark.parametrize(
    ("log_ratios", "kept"), [([1.0, -1.0], [False] * 2), ([0.2], [False]), ([0.19, 9.0], [True, False]), ([], [])]
)
def test_where_others_stay_no_token_is_kept_beyond_the_second_moment(log_ratios: list[float], kept: list[bool]) -> None:
    assert within_second_moment(torch.tensor(log_ratios), 0.04, keep_smallest=False).tolist() == kept


@pytest.mark.parametrize(
    ("shape", "value_clip", "expected", "clipped"),
    [
        ("squared", None, [0.5, 0.0, 2.0, 200.0, 2.0], None),
        ("squared", 0.5, [1.125, 0.125, 2.0, 220.5, 2.0], 0.6),
        ("huber", None, [0.5, 0.0, 2.0, 150.0, 2.0], None),
    ],
)
def test_value_loss(shape: Any, value_clip: float | None, expected: list[float], clipped: float | None) -> None:
    value = torch.tensor([2.0, 1.0, 1.0, 20.0, 3.0, float("nan")], requires_grad=True)
    old = torch.tensor([1.0, 0.0, 1.0, 21.5, 1.0, 1e9])
    returns = torch.tensor([3.0, 1.0, 3.0, 0.0, 1.0, float("inf")])
    mask = torch.tensor([True] * 5 + [False])
    loss, metrics = clipped_value(value, old, returns, mask, value_clip=value_clip, shape=shape)
    assert loss.tolist() == pytest.approx([*expected, 0.0])
    told = {m.name: m.value for m in metrics}
    assert told.get("value_clipped") == clipped
    assert told["value_error"] == pytest.approx(30.9 if shape == "huber" else 40.9)
    assert torch.autograd.grad(loss.sum(), value)[0][5] == 0


def test_overlong_penalty_grows_through_the_buffer() -> None:
    penalty = Overlong(max_length=20, buffer=5, factor=0.5).penalty(torch.tensor([3, 15, 16, 18, 20, 22]))
    assert penalty.tolist() == pytest.approx([0, 0, -0.1, -0.3, -0.5, -0.5])


def test_shaping_goes_in_order_and_tells_its_parts() -> None:
    shaping = Shaping(overlong=Overlong(max_length=2, buffer=1), reward_bias=-1.0, reward_scaling=3.0, reward_clip=4.0)
    algorithm = GRPO(reward_shaping=shaping)
    batch = make_batch(algorithm, [1, 1, 1], [1.0, 2.0, None], [[1, 1], [1], [1]])
    assert shaping(batch)[:2].tolist() == [-3.0, 3.0]
    assert Shaping(reward_scaling=10.0, reward_clip=4.0)(batch)[:2].tolist() == [4.0, 4.0]
    metrics = {m.name.removeprefix("train/"): m.value for m in algorithm.step_metrics(algorithm.prepare(batch))}
    means = {name: metrics[f"reward_{name}_mean"] for name in ("raw", "overlong", "shaped")}
    assert means == {"raw": 1.5, "overlong": -0.5, "shaped": 0.0}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Overlong(max_length=4, buffer=5), r"buffer must be in 1..max_length 4, got 5"),
        (lambda: Overlong(max_length=4, buffer=2, factor=0.0), "factor must be finite and > 0, got 0.0"),
        (lambda: Shaping(reward_scaling=0.0), "reward_scaling must be finite and > 0, got 0.0"),
        (lambda: Shaping(reward_clip=-1.0), "reward_clip must be > 0"),
    ],
)
def test_shaping_that_cannot_be_meant_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
