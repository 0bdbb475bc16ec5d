"""Rollout settings: rules, derived numbers, and the default answer to failed episodes."""

from __future__ import annotations

from typing import Any

import pytest

from areal_lit.rollout import Rollout, RolloutDefaults
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
