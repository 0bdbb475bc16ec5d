"""When a checkpoint is due, and which evaluation is best."""

from __future__ import annotations

import pytest

from areal_lit.checkpointing import Best, Checkpoint


def due(settings: Checkpoint, seconds_since_save: float = 0.0) -> list[int]:
    """Of seven steps, which are saved."""
    return [
        step for step in range(1, 8) if settings.is_due(step, is_last=step == 7, seconds_since_save=seconds_since_save)
    ]


def test_steps_minutes_and_the_end() -> None:
    assert due(Checkpoint(every_steps=3)) == [3, 6, 7]
    assert due(Checkpoint(every_steps=3, at_end=False)) == [3, 6]
    assert due(Checkpoint(every_minutes=2), seconds_since_save=119.9) == [7]
    assert due(Checkpoint(every_minutes=2), seconds_since_save=120.0) == [1, 2, 3, 4, 5, 6, 7]
    assert due(Checkpoint(at_end=False), seconds_since_save=1e9) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"keep_last": -1}, r"checkpoint\.keep_last must be >= 0, got -1"),
        ({"every_minutes": float("nan")}, r"checkpoint\.every_minutes must be >= 0, got nan"),
        ({"timeout_s": 0}, r"checkpoint\.timeout_s must be > 0, got 0"),
    ],
)
def test_values_that_cannot_be_are_refused(arguments: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Checkpoint(**arguments)  # type: ignore[arg-type]


def test_the_score_of_an_evaluation() -> None:
    evaluation = {"eval/test/reward": 0.5, "eval/test/loss": float("nan")}
    assert Best(set="test").score(evaluation) == 0.5
    assert Best(set="test", mode="min").score(evaluation) == -0.5
    assert Best(set="test", metric="loss").score(evaluation) is None
    assert Best(set="other").score(evaluation) is None
    with pytest.raises(ValueError, match=r"mode must be max or min, got 'best'"):
        Best(set="test", mode="best")  # type: ignore[arg-type]
