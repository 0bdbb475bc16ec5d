"""The default policies: what a checkpoint is due for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from areal_lit.checkpointing import Best, Checkpoint
from areal_lit.run.policies import DefaultPolicies


def saved(scores: list[float], *, best_score: float | None = None, at_start: float | None = None) -> list[int]:
    """Steps after which a run with one evaluation per step saves; only the best are due."""
    trainer: Any = SimpleNamespace(checkpoint=Checkpoint(best=Best(set="test"), at_end=False), max_steps=None)
    policies = DefaultPolicies(lambda: best_score)
    if at_start is not None:
        policies.evaluate_end(trainer, 0, {"eval/test/reward": at_start})
    steps = []
    for step, score in enumerate(scores, start=1):
        policies.evaluate_end(trainer, step, {"eval/test/reward": score})
        if policies.should_checkpoint(trainer, step):
            steps.append(step)
    return steps


@pytest.mark.parametrize(
    ("scores", "options", "steps"),
    [
        ([0.5, 0.25, 0.5, 0.75, float("nan"), 1.0], {}, [1, 4, 6]),
        ([0.5, 0.75], {"best_score": 0.5}, [2]),
        ([0.5, 0.75], {"at_start": 0.9}, [1, 2]),
    ],
    ids=["each new best", "a resumed run knows its best", "before the first step nothing can be saved"],
)
def test_each_new_best_is_saved(scores: list[float], options: dict[str, float], steps: list[int]) -> None:
    assert saved(scores, **options) == steps


def test_minutes_count_from_the_last_save() -> None:
    trainer: Any = SimpleNamespace(checkpoint=Checkpoint(every_minutes=1e-9), max_steps=None)
    policies = DefaultPolicies(lambda: None)
    assert policies.should_checkpoint(trainer, 1)
    trainer.checkpoint = Checkpoint(every_minutes=60)
    policies.checkpoint_save()
    assert not policies.should_checkpoint(trainer, 2)
