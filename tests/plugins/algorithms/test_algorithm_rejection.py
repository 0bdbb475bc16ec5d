"""The off-policy weight and every combination of its rejection, against plain Python on ragged batches."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from algorithm_batches import make_batch, put
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_lit.token_batch import TokenBatch
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.kpop import KPop
from areal_lit_algorithms.pieces.rejection import Rejection, binary_kl, off_policy_weight

GRID = [
    *product(["token"], ["mask"], ["ratio", "k1", "k2", "k3", "binary_kl"], ["mean"]),
    *product(["sequence"], ["mask"], ["ratio", "k1", "k2", "k3", "binary_kl"], ["sum", "mean", "max"]),
    *product(["token"], ["clamp"], ["ratio"], ["mean"]),
    *product(["sequence"], ["clamp"], ["ratio"], ["sum", "mean", "max"]),
]
BOUNDS = {"ratio": (0.6, 1.5), "k1": (-0.4, 0.3), "k2": (None, 0.2), "k3": (None, 0.2), "binary_kl": (None, 0.1)}

rows = st.lists(
    st.lists(st.tuples(st.floats(-6, -0.01), st.floats(-1.5, 1.5), st.booleans()), min_size=1, max_size=5),
    min_size=1,
    max_size=5,
)


def bernoulli(proximal: float, behaviour: float) -> float:
    p, q = math.exp(proximal), math.exp(behaviour)
    return max(
        p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)),
        q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p)),
    )


def token_statistic(metric: str, proximal: float, behaviour: float) -> float:
    """In log space for a ratio."""
    x = behaviour - proximal
    return {
        "ratio": -x,
        "k1": x,
        "k2": x * x / 2,
        "k3": math.exp(-x) - 1 + x,
        "binary_kl": bernoulli(proximal, behaviour),
    }[metric]


def expected_weights(tokens: list[tuple[float, float]], rejection: Rejection) -> list[float]:
    """The weights of one sequence's loss tokens, (proximal, behaviour) each."""
    statistic = [token_statistic(rejection.metric, *token) for token in tokens]
    if rejection.level == "sequence" and tokens:
        gather = {"sum": sum, "mean": statistics.fmean, "max": max}[rejection.aggregate]
        statistic = [gather(statistic)] * len(tokens)
    judged = [math.exp(x) if rejection.metric == "ratio" else x for x in statistic]
    lower = -math.inf if rejection.lower is None else rejection.lower
    assert rejection.upper is not None
    result = []
    for (proximal, behaviour), value in zip(tokens, judged, strict=True):
        if rejection.action == "clamp":
            result.append(min(max(value, lower), rejection.upper))
        else:
            is_kept = lower <= value <= rejection.upper
            result.append(math.exp(proximal - behaviour) if is_kept else 0.0)
    return result


def batch_of(drawn: list[list[tuple[float, float, bool]]]) -> TokenBatch:
    batch = make_batch(GRPO(), [1] * len(drawn), [0.0] * len(drawn), [[int(m) for *_, m in row] for row in drawn])
    batch = put(batch, "logprob", [[behaviour for behaviour, *_ in row] for row in drawn])
    return put(batch, "proximal", [[min(b + shift, -0.001) for b, shift, _ in row] for row in drawn])


@pytest.mark.parametrize(("level", "action", "metric", "aggregate"), GRID)
@given(drawn=rows)
@settings(max_examples=20)
def test_the_grid(level: Any, action: Any, metric: Any, aggregate: Any, drawn: Any) -> None:
    lower, upper = BOUNDS[metric]
    rejection = Rejection(level=level, action=action, metric=metric, aggregate=aggregate, lower=lower, upper=upper)
    batch = batch_of(drawn)
    weight_T, metrics = off_policy_weight(
        batch["proximal"], batch["logprob"], batch, is_corrected=True, rejection=rejection
    )
    expected = []
    for row in drawn:
        tokens = [(min(b + shift, -0.001), b) for b, shift, is_trained in row if is_trained]
        expected += expected_weights(tokens, rejection)
    assert weight_T[batch["loss_mask"]].tolist() == pytest.approx(expected, rel=1e-9)
    values = {m.name: m.value for m in metrics}
    if expected and action == "mask":
        share = sum(weight == 0 for weight in expected) / len(expected)
        assert values["rejected_low"] + values["rejected_high"] == pytest.approx(share)


@pytest.mark.parametrize(("level", "action", "metric", "aggregate"), [kind for kind in GRID if kind[1] == "mask"])
@given(drawn=rows, weight_cap=st.floats(1.0, 3.0))
@settings(max_examples=20)
def test_a_cap_bounds_what_a_mask_keeps_and_changes_nothing_else(
    level: Any, action: Any, metric: Any, aggregate: Any, drawn: Any, weight_cap: float
) -> None:
    lower, upper = BOUNDS[metric]
    uncapped = Rejection(level=level, action=action, metric=metric, aggregate=aggregate, lower=lower, upper=upper)
    batch = batch_of(drawn)
    policies = batch["proximal"], batch["logprob"], batch
    free_T, _ = off_policy_weight(*policies, is_corrected=True, rejection=uncapped)
    capped = replace(uncapped, weight_cap=weight_cap)
    weight_T, metrics = off_policy_weight(*policies, is_corrected=True, rejection=capped)
    assert weight_T.tolist() == [min(free, weight_cap) for free in free_T.tolist()]
    is_above = [free > weight_cap for free in free_T[batch["loss_mask"]].tolist()]
    if is_above:
        assert {m.name: m.value for m in metrics}["weight_capped"] == pytest.approx(sum(is_above) / len(is_above))
    uncorrected = [off_policy_weight(*policies, is_corrected=False, rejection=r)[0] for r in (uncapped, capped)]
    assert uncorrected[0].tolist() == uncorrected[1].tolist()


@pytest.mark.parametrize(
    "rejection",
    [
        Rejection(action="mask", metric="binary_kl", upper=2.0),
        Rejection(level="sequence", action="mask", metric="k1", lower=-0.1, upper=0.1),
        Rejection(level="sequence", action="mask", lower=0.9, upper=1.1),
    ],
)
def test_masks_that_leave_a_weight_without_a_bound_are_bounded_by_a_cap(rejection: Rejection) -> None:
    """The first token is 2981 times likelier than it was, the second as much less: their sequence is where it was."""
    batch = batch_of([[(-12.0, 8.0, True), (-4.0, -8.0, True)]])
    policies = batch["proximal"], batch["logprob"], batch
    free_T, _ = off_policy_weight(*policies, is_corrected=True, rejection=rejection)
    capped_T, _ = off_policy_weight(*policies, is_corrected=True, rejection=replace(rejection, weight_cap=2.0))
    assert free_T[1:].tolist() == pytest.approx([math.exp(8), math.exp(-8)])
    assert capped_T[1:].tolist() == pytest.approx([2.0, math.exp(-8)])


def test_a_bound_may_be_missing() -> None:
    batch = batch_of([[(-1.0, -1.0, True), (-2.0, 1.5, True)]])
    policies = batch["proximal"], batch["logprob"], batch
    for rejection, expected in (
        (Rejection(lower=0.9, upper=None), [0.9, math.exp(1.5)]),
        (Rejection(lower=None, upper=2.0), [math.exp(-1.0), 2.0]),
        (None, [math.exp(-1.0), math.exp(1.5)]),
    ):
        weight_T, _ = off_policy_weight(*policies, is_corrected=True, rejection=rejection)
        assert weight_T[1:].tolist() == pytest.approx(expected)


def test_uncorrected_data_is_masked_and_never_clamped() -> None:
    batch = batch_of([[(-1.0, 0.1, True), (-4.0, 1.5, True)]])
    policies = batch["proximal"], batch["logprob"], batch
    masked_T, _ = off_policy_weight(*policies, is_corrected=False, rejection=Rejection(action="mask", upper=2.0))
    clamped_T, _ = off_policy_weight(*policies, is_corrected=False, rejection=Rejection(upper=2.0))
    assert (masked_T[1:].tolist(), clamped_T[1:].tolist()) == ([1.0, 0.0], [1.0, 1.0])


def test_the_weight_has_no_gradient_and_keeps_what_the_loss_is_in() -> None:
    batch = batch_of([[(-1.0, 0.5, True)]])
    proximal_T = batch["proximal"].float().requires_grad_()
    weight_T, _ = off_policy_weight(proximal_T, batch["logprob"], batch, is_corrected=True, rejection=Rejection())
    assert (weight_T.requires_grad, weight_T.dtype) == (False, torch.float32)


def test_binary_kl_of_certain_tokens_is_finite() -> None:
    certain, likely, equal = binary_kl(torch.tensor([0.0, -0.5, 0.0]), torch.tensor([-0.7, -0.5, 0.0])).tolist()
    assert 5 < certain < 30
    assert (likely, equal) == (0.0, 0.0)


def test_binary_kl_of_what_is_next_to_impossible_is_a_number() -> None:
    never, far = float("-inf"), -800.0  # of which exp is 0
    tokens = torch.tensor([[never, never], [far, 2 * far], [never, -0.5], [far, math.log(0.5)]])
    first, second = tokens.T
    expected = [0.0, 0.0, math.inf, 0.5 * -far + math.log(0.5)]
    assert binary_kl(first, second).tolist() == pytest.approx(expected)
    assert binary_kl(second, first).tolist() == pytest.approx(expected)


def test_what_rounds_to_certainty_is_near_to_what_is_nearly_certain() -> None:
    """A float32 log-prob of 0 may be any probability above 1 - 1e-6."""
    rounded, known = binary_kl(torch.tensor([0.0, -1e-6]), torch.tensor([-0.1, -0.1])).tolist()
    assert rounded == pytest.approx(known)
    assert rounded == pytest.approx(bernoulli(-1e-6, -0.1))
    assert KPop().rejection == Rejection(action="mask", metric="binary_kl", upper=2.0)
    assert rounded < 2.0


@pytest.mark.parametrize("metric", ["k1", "k2", "k3", "binary_kl"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_what_the_policy_of_the_step_cannot_draw_is_beyond_any_bound(metric: Any, level: Any) -> None:
    batch = put(batch_of([[(-1.0, 0.0, True), (-1.0, 0.0, True)]]), "proximal", [[-math.inf, -1.0]])
    rejection = Rejection(level=level, action="mask", metric=metric, upper=5.0)
    weight_T, metrics = off_policy_weight(
        batch["proximal"], batch["logprob"], batch, is_corrected=False, rejection=rejection
    )
    assert weight_T[1:].tolist() == [0.0, float(level == "token")]
    assert {m.name: m.value for m in metrics}["rejected_high"] == (0.5 if level == "token" else 1.0)


@pytest.mark.parametrize(
    ("metric", "lower", "upper"),
    [
        ("ratio", 1.0, 1.0 + 1e-9), ("k1", -1e-9, 1e-9), ("k2", None, 0.0), ("k3", None, 0.0), ("binary_kl", None, 0.0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_no_bounds_reject_what_policies_agree_on(metric: Any, lower: float | None, upper: float, level: Any) -> None:
    """The narrowest that are taken; any that would are refused below."""
    batch = batch_of([[(-1.0, 0.0, True), (-0.002, 0.0, True)], [(-9.0, 0.0, True)]])
    rejection = Rejection(level=level, action="mask", metric=metric, lower=lower, upper=upper)
    weight_T, _ = off_policy_weight(batch["proximal"], batch["logprob"], batch, is_corrected=False, rejection=rejection)
    assert weight_T[batch["loss_mask"]].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metric": "k2"}, "action clamp bounds the ratio itself, got metric 'k2'"),
        ({"weight_cap": 2.0}, "weight_cap is for action mask, got 2.0; a clamp caps the weight at upper"),
        *(
            ({"action": "mask", "weight_cap": cap}, "weight_cap must be >= 1, the weight of on-policy tokens")
            for cap in (0.9, -1.0, math.nan)
        ),
        ({"upper": None}, "needs lower or upper, got neither"),
        ({"lower": 2.0, "upper": 1.0}, "lower must be < upper, got 2.0 and 1.0"),
        ({"upper": 0.0}, "bounds of ratio must hold 1"),
        ({"lower": 1.5, "upper": None}, "bounds of ratio must hold 1"),
        ({"lower": -0.5}, "lower must be >= 0 for a ratio, got -0.5"),
        ({"upper": math.nan}, "bounds of ratio must hold 1"),
        *(
            ({"action": "mask", "metric": metric, "lower": lower}, f"{metric} is 0 where the policies agree and never")
            for metric in ("k2", "k3", "binary_kl")
            for lower in (0.0, 0.1)
        ),
        *(
            ({"action": "mask", "metric": metric, "upper": -0.1}, f"bounds of {metric} must hold 0")
            for metric in ("k1", "k2", "k3", "binary_kl")
        ),
        ({"action": "mask", "metric": "k1", "lower": 0.1}, "bounds of k1 must hold 0"),
    ],
)
def test_wrong_bounds_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rejection(**arguments)
