"""Rollout settings: rules, derived numbers, and the default answer to failed episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_lit.rollout import Rollout, RolloutDefaults, Warmup
from areal_lit.types import Example, Prompt


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("groups_per_step", 0), ("samples_per_group", 0), ("max_staleness", -1), ("max_concurrent", 0),
        ("episode_timeout_s", 0.0), ("max_attempts", 0), ("failure_budget", 1.5), ("max_rejected_groups", 0),
        ("wait_timeout_s", -1.0), ("num_epochs", 0), ("sync_mode", "stop"), ("partial_groups", "keep"),
        ("stale_groups", "train"), ("when_exhausted", "stop"),
    ],
)  # fmt: skip
def test_bad_value_is_refused_with_value_and_rule(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"rollout.{name} must be .*got {value}"):
        Rollout(**{"groups_per_step": 1, "samples_per_group": 1, name: value})


def test_derived_numbers() -> None:
    rollout = Rollout(groups_per_step=8, samples_per_group=2, max_staleness=2)
    assert rollout.concurrency == 24
    assert rollout.rejection_limit == 128
    assert Rollout(groups_per_step=8, samples_per_group=2, max_concurrent=3).concurrency == 3


@pytest.mark.parametrize(
    ("when_exhausted", "num_epochs", "expected"),
    [("next_epoch", None, None), ("end", None, 1), ("end", 3, 3), ("next_epoch", 2, 2)],
)
def test_passes_over_the_data(when_exhausted: Any, num_epochs: int | None, expected: int | None) -> None:
    rollout = Rollout(groups_per_step=1, samples_per_group=1, when_exhausted=when_exhausted, num_epochs=num_epochs)
    assert rollout.epochs == expected


def test_default_retries_then_drops() -> None:
    defaults = RolloutDefaults(Rollout(groups_per_step=1, samples_per_group=1, max_attempts=3))
    prompt = Prompt(prompt_id=0, source="a", row=0, epoch=0, example=Example(prompt=""))
    decisions = [defaults.rollout_error(prompt=prompt, error=OSError(), attempt=n) for n in (1, 2, 3)]
    assert decisions == ["retry", "retry", "drop"]


@given(full=st.integers(1, 40), start=st.integers(1, 40), steps=st.integers(1, 30), num_steps=st.integers(0, 50))
def test_a_warm_up_grows_to_its_full_value_and_its_total_is_the_sum(
    full: int, start: int, steps: int, num_steps: int
) -> None:
    warmup = Warmup(start=min(start, full), steps=steps)
    values = [warmup.at(step, full) for step in range(num_steps)]
    assert values == sorted(values)
    assert all(value == full for value in values[steps:])
    assert values[:1] in ([], [warmup.start])
    assert warmup.total(num_steps, full) == sum(values)


def test_values_on_the_way_are_multiples() -> None:
    warmup = Warmup(start=4, steps=5, multiple_of=4)
    assert [warmup.at(step, 18) for step in range(7)] == [4, 4, 8, 12, 12, 18, 18]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Warmup(start=0, steps=1), "start of a warm-up must be >= 1, got 0"),
        (lambda: Warmup(start=1, steps=0), "steps of a warm-up must be >= 1, got 0"),
        (lambda: Warmup(start=1, steps=10**30), "steps of a warm-up must be <= 1000000, got 1"),
        (lambda: Warmup(start=3, steps=1, multiple_of=2), "must be a multiple of 2, got 3"),
        (
            lambda: Rollout(groups_per_step=4, samples_per_group=1, groups_warmup=Warmup(start=5, steps=1)),
            "rollout.groups_warmup.start must be at most groups_per_step 4, got 5",
        ),
        (
            lambda: Rollout(groups_per_step=4, samples_per_group=1, length_warmup=Warmup(start=300, steps=1)),
            "rollout.length_warmup.start must be at most sampling.max_new_tokens 256, got 300",
        ),
    ],
)
def test_a_warm_up_that_cannot_be_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
