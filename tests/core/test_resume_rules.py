"""A recipe that cannot go on from its checkpoint is refused before anything is started or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_lit import recipes
from areal_lit.checkpointing import Checkpoint, CheckpointStore
from areal_lit.checkpointing.reading import STATE_PARTS
from areal_lit.cli.main import main


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """The command line of a run that has a checkpoint at step 3."""
    told = ["--config", "quickstart", "--name", "mine", "--runs_dir", str(tmp_path)]
    config = recipes.load("quickstart", overrides=[f"runs_dir={tmp_path}", "name=mine"]).config
    made = CheckpointStore(tmp_path / "mine" / "checkpoints", Checkpoint())
    made.commit(made.begin(3), 3, {**{part: {} for part in STATE_PARTS}, "config": config})
    return told


def written(directory: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*")}


@pytest.mark.parametrize("resume", ["auto", "checkpoints/step-00000003"])
@pytest.mark.parametrize("command", ["validate", "fit"])
def test_another_seed_is_a_broken_rule(
    arguments: list[str], tmp_path: Path, command: str, resume: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = resume if resume == "auto" else str(tmp_path / "mine" / resume)
    before = written(tmp_path)
    assert main([command, *arguments, "--resume", place, "--seed", "7"]) == 1
    (rule,) = capsys.readouterr().err.splitlines()[1:]
    assert "step-00000003: seed was 0 and now is 7; " in rule
    assert written(tmp_path) == before


def test_a_run_that_is_at_its_end_is_a_note_of_a_valid_recipe(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", *arguments, "--resume", "auto", "--max_steps", "3"]) == 0
    note = capsys.readouterr().out.splitlines()[-1]
    assert note.startswith("note: nothing is left to train: ")
    assert "is at step 3 and max_steps is 3; raise max_steps" in note
    assert main(["validate", *arguments, "--resume", "auto", "--max_steps", "4"]) == 0
    assert "note:" not in capsys.readouterr().out


def test_python_is_told_both(arguments: list[str], tmp_path: Path) -> None:
    trainer = recipes.load("quickstart", overrides=[f"runs_dir={tmp_path}", "name=mine", "max_steps=2"])
    (rule,) = trainer.validate(resume="auto")
    assert "is at step 3 and max_steps is 2" in rule
