"""The failure budget: bad luck goes on, a broken setup ends."""

from __future__ import annotations

from areal_lit.rollout.failure_budget import FailureBudget


def test_one_prompt_that_always_fails_is_bad_luck() -> None:
    budget = FailureBudget(0.0)
    budget.record(8, 8)
    assert budget.exceeded(0) == ""


def test_everything_failing_is_not() -> None:
    budget = FailureBudget(0.1)
    for _ in range(3):
        budget.record(8, 8)
    assert "24 of the last 24 episodes" in budget.exceeded(0)


def test_failures_that_are_merely_first_to_end_are_weighed_against_what_runs() -> None:
    budget = FailureBudget(0.1)
    for _ in range(3):
        budget.record(8, 8)
    assert budget.exceeded(1000) == ""


def test_old_groups_are_forgotten() -> None:
    budget = FailureBudget(0.1, num_groups=10)
    for failed in [8] * 5 + [0] * 10:
        budget.record(failed, 8)
    assert budget.exceeded(0) == ""


def test_how_much_is_used() -> None:
    budget = FailureBudget(0.1)
    assert budget.used(0) == 0
    budget.record(1, 8)
    assert budget.used(12) == 0.5
    nothing_allowed = FailureBudget(0.0)
    nothing_allowed.record(1, 8)
    assert nothing_allowed.used(0) == 1
