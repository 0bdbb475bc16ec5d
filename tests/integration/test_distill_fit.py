"""Whole runs that distil: the same numbers whatever is compared and wherever the teacher lives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from acting_callbacks import AtStep
from child_processes import children_called
from fit_runs import rows

from areal_lit import recipes
from areal_lit.contracts import ProcessDied

SMALL: dict[str, Any] = {
    "rollout": {"groups_per_step": 8, "max_staleness": 0}, "checkpoint": {"at_end": False}, "callbacks": [],
    "evaluation": {"at_start": False, "at_end": False}, "loggers": ["csv"], "sync": {"probe_first": 0},
}  # fmt: skip
SERVED: dict[str, Any] = {
    "teacher": None,
    "teacher_server": {
        "model": {"path": "package:areal_lit_recipes/quickstart_teacher"}, "inference": "transformers",
    },
}  # fmt: skip


def compared(**options: Any) -> dict[str, Any]:
    return {"algorithm": {"init_args": options}}


@pytest.mark.slow
def test_all_of_the_likeliest_tokens_are_the_whole_vocabulary_on_ranks_and_behind_a_server(tmp_path: Path) -> None:
    everything = compared(compare="top_k", top_k=64)
    ways = {"vocabulary": [compared(compare="vocabulary")], "likeliest": [everything], "served": [everything, SERVED]}
    here = {
        "launcher": "inline",
        "transport": "memory",
        "deterministic": True,
        "max_steps": 2,
        "runs_dir": str(tmp_path),
    }
    found = {}
    for name, configs in ways.items():
        run = recipes.load("quickstart_distill", SMALL, {**here, "name": name}, *configs).fit()
        found[name] = [
            [float(row[key]) for key in ("train/teacher_divergence", "train/loss", "train/grad_norm")]
            for row in rows(run)
        ]
    for name in ("likeliest", "served"):
        for ours, theirs in zip(found[name], found["vocabulary"], strict=True):
            assert ours == pytest.approx(theirs, rel=2e-3)
    assert all(row[0] > 0 for row in found["vocabulary"])


@pytest.mark.slow
def test_a_teacher_that_dies_ends_the_run(tmp_path: Path) -> None:
    def kill() -> None:
        (engine,) = children_called("teacher-engine-0")
        engine.kill()

    run = recipes.load(
        "quickstart_distill", SMALL, compared(compare="sampled"), SERVED, {"max_steps": 1000, "runs_dir": str(tmp_path)}
    )
    run.callbacks = [AtStep(2, kill)]
    with pytest.raises(ProcessDied, match="teacher-engine-0"):
        run.fit()


@pytest.mark.slow
def test_without_a_reward_it_learns_the_same(tmp_path: Path) -> None:
    here = {"launcher": "inline", "transport": "memory", "deterministic": True, "max_steps": 2}
    scored, bare = (
        rows(recipes.load("quickstart_distill", SMALL, {**here, "runs_dir": str(tmp_path / name), **changes}).fit())
        for name, changes in {"scored": {}, "bare": {"reward": None}}.items()
    )
    assert all(float(row["rollout/reward"]) >= 0 for row in scored)
    assert not any(name.startswith(("rollout/reward", "rollout/equal")) for row in bare for name in row)
    assert [row["rollout/unscored"] for row in bare] == ["0", "0"]
    for name in ("train/loss", "train/grad_norm", "train/teacher_divergence"):
        assert [row[name] for row in bare] == [row[name] for row in scored]
