"""Filters judge raw rewards of scored members only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from areal_lit.testing.filter import check_filter, make_group
from areal_lit.types import Example, Group, Prompt, StepScore, Trajectory
from areal_lit_filters.equal_rewards import EqualRewards
from areal_lit_filters.length import Length
from areal_lit_filters.staleness import Staleness
from areal_lit_filters.success_rate import SuccessRate


def group(*rewards: float | None) -> Group:
    prompt = Prompt(prompt_id=0, source="a", row=0, epoch=0, example=Example(prompt="x"))
    empty = np.zeros(0, np.int64)
    return Group(
        prompt=prompt,
        trajectories=tuple(
            Trajectory(
                token_ids=empty, loss_mask=empty.astype(bool), logprobs=empty.astype(np.float32), versions=empty,
                prompt=prompt, reward=reward, unscored="" if reward is not None else "timeout", sample=sample,
            )
            for sample, reward in enumerate(rewards)
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rewards", "accepted"),
    [
        ((0.0, 1.0), True), ((1.0, 1.0, 1.0), False), ((0.0, None), False), ((None, None), False), ((), False),
        ((0.5,), False), ((0.1 + 0.2, 0.3), False), ((1.0, 1.0, 2.0, None), True),
    ],
)  # fmt: skip
def test_equal_rewards(rewards: tuple[float | None, ...], accepted: bool) -> None:
    assert EqualRewards().accept(group(*rewards)) is accepted


@pytest.mark.parametrize(
    ("turns", "steps", "accepted"),
    [
        (((0.0, 1.0), (0.0, 1.0)), ((), ()), True),
        (((0.5, 0.5), (0.5, 0.5)), ((), ()), False),
        (((), ()), ((1.0,), (0.0, 1.0)), True),
        (((), ()), ((1.0,), (1.0, 1.0)), False),
        (((0.5,), ()), ((), ()), False),
    ],
)
def test_equal_rewards_of_samples_whose_turns_or_steps_differ_still_teach(
    turns: Sequence[tuple[float, ...]], steps: Sequence[tuple[float, ...]], accepted: bool
) -> None:
    equal = group(1.0, 1.0, None)
    scored = tuple(
        replace(t, turn_rewards=of, step_scores=tuple(StepScore(last_token=1, value=value) for value in values))
        for t, of, values in zip(equal.trajectories[:2], turns, steps, strict=True)
    )
    unscored = replace(equal.trajectories[2], turn_rewards=(9.0, 8.0))
    assert EqualRewards().accept(replace(equal, trajectories=(*scored, unscored))) is accepted


@pytest.mark.parametrize(
    ("rewards", "accepted"),
    [
        ((1.0, 0.0, 0.0, 0.0), True), ((0.0, 0.0, 0.0, 0.0), False), ((1.0, 1.0, 1.0, 0.0), True),
        ((1.0, 1.0, 1.0, 1.0), False), ((1.0, None, None, None), False), ((None,), False), ((1.0, 0.0, None), True),
    ],
)  # fmt: skip
def test_success_rate_of_a_quarter_to_three_quarters(rewards: tuple[float | None, ...], accepted: bool) -> None:
    assert SuccessRate(low=0.25, high=0.75).accept(group(*rewards)) is accepted


def test_conformance() -> None:
    check_filter(EqualRewards, accepts=[(0.0, 1.0)], rejects=[(1.0, 1.0), (1.0, None)])
    check_filter(SuccessRate, accepts=[(0.0, 1.0)], rejects=[(1.0, 1.0), (None, None)])
    aged = [make_group((0.0, 1.0), age=age) for age in (0, 2, 3)]
    check_filter(lambda: Staleness(max_versions=2), accepts=[*aged[:2], (1.0, 1.0)], rejects=aged[2:])
    short, long = (make_group((0.0, None, 1.0), num_tokens=lengths) for lengths in ((9, 2, 2), (9, 10, 2)))
    check_filter(lambda: Length(max_tokens=8), accepts=[short], rejects=[long])
    check_filter(lambda: Length(max_tokens=6, over="mean"), accepts=[long], rejects=[])
    check_filter(lambda: Length(max_tokens=5, over="mean"), accepts=[short], rejects=[long])


def test_bad_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got 0\.8 and 0\.2"):
        SuccessRate(low=0.8, high=0.2)
    for tolerance in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="tolerance must be finite and >= 0"):
            EqualRewards(tolerance=tolerance)
    with pytest.raises(ValueError, match="threshold must be a finite number, got nan"):
        SuccessRate(threshold=math.nan)
    with pytest.raises(ValueError, match="max_versions must be >= 0, got -1"):
        Staleness(max_versions=-1)
    with pytest.raises(ValueError, match="max_tokens must be >= 1, got 0"):
        Length(max_tokens=0)
    with pytest.raises(ValueError, match="over must be any or mean, got 'max'"):
        Length(max_tokens=1, over="max")  # type: ignore[arg-type]
