"""The checkpoints of a run: torn ones are told apart, the newest is found, the right ones are deleted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from areal_lit.checkpoint import Checkpoint, CheckpointStore, find_damage, read_state, whole_checkpoint


def write(directory: Path) -> dict[str, Any]:
    (directory / "roles").mkdir()
    (directory / "roles" / "weights").write_bytes(b"123456")
    return {"batches": {"at": 7}}


def store(tmp_path: Path, *steps: int, keep_last: int = 0) -> CheckpointStore:
    made = CheckpointStore(tmp_path / "checkpoints", keep_last=keep_last)
    for step in steps:
        made.save(step, write)
    return made


def steps(made: CheckpointStore) -> list[int]:
    return sorted(int(path.name[5:]) for path in made.directory.glob("step-*"))


def test_a_saved_checkpoint_is_whole_and_reads_back(tmp_path: Path) -> None:
    path = store(tmp_path).save(42, write)
    assert path == tmp_path / "checkpoints" / "step-00000042"
    assert find_damage(path) is None
    assert read_state(path) == {"format": 1, "step": 42, "batches": {"at": 7}}
    assert {p.name for p in path.parent.iterdir()} == {path.name}


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    def fail(directory: Path) -> dict[str, Any]:
        write(directory)
        raise OSError("no space left on device")

    made = store(tmp_path, 1)
    with pytest.raises(OSError, match="no space"):
        made.save(2, fail)
    assert made.latest() == made.directory / "step-00000001"
    made.save(2, write)
    assert steps(made) == [1, 2]
    assert not list(made.directory.glob(".partial-*"))


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    made = store(tmp_path, 3)
    assert read_state(made.save(3, lambda directory: {**write(directory), "again": True}))["again"] is True


def overwrite(file: Path, text: bytes) -> None:
    """With other content of the same size."""
    size = file.stat().st_size
    file.write_bytes(text.ljust(size)[:size])


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "unfinished": (lambda p: (p / "complete.json").unlink(), "never finished"),
    "garbled": (lambda p: (p / "complete.json").write_text("{"), "not readable JSON"),
    "listless": (lambda p: (p / "complete.json").write_text("[]"), "not readable JSON with sizes"),
    "undecodable": (lambda p: (p / "complete.json").write_bytes(b"\xff"), "not readable JSON with sizes"),
    "junk": (lambda p: overwrite(p / "state.json", b"x"), "state.json is not readable JSON"),
    "stateless": (lambda p: overwrite(p / "state.json", b"[]"), "state.json is not readable JSON"),
    "lost": (lambda p: (p / "roles" / "weights").unlink(), "roles/weights is missing"),
    "torn": (lambda p: (p / "roles" / "weights").write_bytes(b"123"), "roles/weights has 3 bytes instead of 6"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_is_named_refused_and_skipped(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage, says = DAMAGES[kind]
    made = store(tmp_path, 1, 2)
    newest = made.directory / "step-00000002"
    damage(newest)
    problem = find_damage(newest)
    assert problem is not None
    assert says in problem
    with pytest.raises(ValueError, match=f"cannot resume from .*{says}.*--resume auto"):
        read_state(newest)
    assert made.latest() == made.directory / "step-00000001"
    assert says in caplog.text


def test_a_run_s_directory_is_no_checkpoint_but_names_those_inside(tmp_path: Path) -> None:
    store(tmp_path, 3, 6)
    with pytest.raises(ValueError, match="holds step-00000003, step-00000006; choose another checkpoint"):
        read_state(tmp_path)


def test_a_foreign_format_is_refused(tmp_path: Path) -> None:
    path = store(tmp_path).save(1, write)
    text = (path / "state.json").read_text().replace('"format": 1', '"format": 9')
    (path / "state.json").write_text(text)
    assert json.loads(text)["format"] == 9
    with pytest.raises(ValueError, match="format 9, this version reads 1"):
        read_state(path)


@pytest.mark.parametrize(("keep_last", "left"), [(0, [1, 2, 3, 4]), (1, [4]), (2, [3, 4]), (9, [1, 2, 3, 4])])
def test_the_newest_are_kept(tmp_path: Path, keep_last: int, left: list[int]) -> None:
    assert steps(store(tmp_path, 1, 2, 3, 4, keep_last=keep_last)) == left


def test_the_latest_of_nothing_is_none(tmp_path: Path) -> None:
    assert store(tmp_path).latest() is None


def test_what_was_just_written_is_never_deleted(tmp_path: Path) -> None:
    made = store(tmp_path, 6, 9, keep_last=2)
    assert made.save(4, write).exists()
    assert steps(made) == [4, 9]


def test_the_branch_that_a_run_leaves_is_moved_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = store(tmp_path, 3, 6, 9, keep_last=0)
    made.abandon_after(made.directory / "step-00000003")
    assert "moved 2 other checkpoints" in caplog.text
    again = store(tmp_path, 4, keep_last=2)
    assert steps(again) == [3, 4]
    assert again.latest() == again.directory / "step-00000004"
    again.abandon_after(again.directory / "step-00000003")
    aside = sorted(str(path.relative_to(made.directory)) for path in made.directory.glob("abandoned-*/*"))
    assert aside == ["abandoned-1/step-00000006", "abandoned-1/step-00000009", "abandoned-2/step-00000004"]


def test_going_on_from_the_newest_moves_nothing(tmp_path: Path) -> None:
    made = store(tmp_path, 3, 6)
    made.abandon_after(made.directory / "step-00000006")
    assert steps(made) == [3, 6]
    assert not list(made.directory.glob("abandoned-*"))


def test_going_on_from_another_run_moves_all_of_this_one(tmp_path: Path) -> None:
    made = store(tmp_path / "mine", 3, 6)
    other = store(tmp_path / "other", 6)
    made.abandon_after(other.directory / "step-00000006")
    assert steps(made) == []
    assert steps(other) == [6]


def test_a_checkpoint_or_the_newest_whole_one_of_a_run_is_evaluated(tmp_path: Path) -> None:
    made = store(tmp_path, 1, 2, 3)
    (made.directory / "step-00000003" / "roles" / "weights").unlink()
    assert whole_checkpoint(made.directory / "step-00000001") == made.directory / "step-00000001"
    assert whole_checkpoint(tmp_path) == made.directory / "step-00000002"
    with pytest.raises(ValueError, match=r"step-00000003: roles/weights is missing; give runs/.*/step-\.\.\. or runs/"):
        whole_checkpoint(made.directory / "step-00000003")
    with pytest.raises(ValueError, match="neither a checkpoint, nor a run with one, nor a Hugging Face model"):
        whole_checkpoint(made.directory / "step-00000001" / "roles")


def test_when_a_checkpoint_is_due() -> None:
    settings = Checkpoint(every_steps=3)
    assert [step for step in range(1, 8) if settings.is_due(step, is_last=step == 7)] == [3, 6, 7]
    assert not Checkpoint(at_end=False).is_due(7, is_last=True)
    with pytest.raises(ValueError, match=r"checkpoint.keep_last must be >= 0, got -1"):
        Checkpoint(keep_last=-1)
