"""The checkpoints of a run: torn ones are told apart, the newest is found, the right ones are deleted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from areal_lit.checkpointing import Best, Checkpoint, CheckpointStore, find, find_damage, read_state
from areal_lit.checkpointing.reading import STATE_PARTS

TABLES: dict[str, Any] = {part: {} for part in STATE_PARTS}
BEST = Best(set="test", metric="pass@1")


def filled(made: CheckpointStore, step: int) -> Path:
    """A partial checkpoint."""
    partial = made.begin(step)
    (partial / "roles").mkdir()
    (partial / "roles" / "weights").write_bytes(b"123456")
    return partial


def save(made: CheckpointStore, step: int, **state: Any) -> Path:
    path = made.commit(filled(made, step), step, {**TABLES, "batches": {"at": 7}, **state})
    made.prune(path)
    return path


def store(tmp_path: Path, *steps: int, keep_last: int = 0, best: Best | None = None) -> CheckpointStore:
    made = CheckpointStore(tmp_path / "checkpoints", Checkpoint(keep_last=keep_last, best=best))
    for step in steps:
        save(made, step)
    return made


def save_scored(made: CheckpointStore, scores: Mapping[int, float], name: str = "eval/test/pass@1") -> None:
    for step, score in scores.items():
        save(made, step, evaluation={name: score})


def steps(made: CheckpointStore) -> list[int]:
    return sorted(int(path.name[5:]) for path in made.directory.glob("step-*"))


def test_a_saved_checkpoint_is_whole_and_reads_back(tmp_path: Path) -> None:
    path = save(store(tmp_path), 42)
    assert path == tmp_path / "checkpoints" / "step-00000042"
    assert find_damage(path) is None
    assert read_state(path) == {**TABLES, "format": 2, "step": 42, "batches": {"at": 7}}
    assert {p.name for p in path.parent.iterdir()} == {path.name}


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    made = store(tmp_path, 3)
    assert read_state(save(made, 3, again=True))["again"] is True
    assert steps(made) == [3]


def test_a_discarded_one_leaves_what_was_there(tmp_path: Path) -> None:
    made = store(tmp_path, 1)
    made.discard(filled(made, 2))
    assert [path.name for path in made.directory.iterdir()] == ["step-00000001"]


def test_what_a_killed_run_left_is_removed_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = store(tmp_path, 1, 2)
    partial = filled(made, 3)
    (made.directory / "step-00000002").rename(made.directory / ".replaced-step-00000002")
    filled(made, 4).rename(made.directory / ".deleted-step-00000000")
    made.tidy()
    assert caplog.messages == [f"removed {partial}: that checkpoint was never finished"]
    assert sorted(path.name for path in made.directory.iterdir()) == ["step-00000001", "step-00000002"]
    (made.directory / ".replaced-step-00000001").mkdir()
    made.tidy()
    assert steps(made) == [1, 2]
    assert find_damage(made.directory / "step-00000001") is None


def overwrite(file: Path, text: bytes) -> None:
    """With other content of the same size."""
    size = file.stat().st_size
    file.write_bytes(text.ljust(size)[:size])


def change(file: Path, **values: Any) -> None:
    overwrite(file, json.dumps({**json.loads(file.read_text()), **values}).encode())


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "unfinished": (lambda p: (p / "complete.json").unlink(), "never finished"),
    "garbled": (lambda p: (p / "complete.json").write_text("{"), "not readable JSON"),
    "listless": (lambda p: (p / "complete.json").write_text("[]"), "not readable JSON with sizes"),
    "undecodable": (lambda p: (p / "complete.json").write_bytes(b"\xff"), "not readable JSON with sizes"),
    "junk": (lambda p: overwrite(p / "state.json", b"x"), "state.json is not readable JSON"),
    "stateless": (lambda p: overwrite(p / "state.json", b"[]"), "state.json is not readable JSON"),
    "foreign": (lambda p: change(p / "state.json", format=9), "checkpoint format 9, this version of areal-lit reads 2"),
    "gutted": (lambda p: overwrite(p / "state.json", b'{"format": 2, "step": 2}'), "no table batches, components, ran"),
    "of other kinds": (lambda p: change(p / "state.json", batches=[], random=None), "no table batches, random; some"),
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
    with pytest.raises(ValueError, match=f"no checkpoint to be had at .*{says}.* or auto"):
        find(str(newest), made)
    assert made.latest() == made.directory / "step-00000001"
    assert says in caplog.text


def test_a_run_s_directory_is_no_checkpoint_but_names_those_inside(tmp_path: Path) -> None:
    made = store(tmp_path, 3, 6)
    problem = find_damage(tmp_path)
    assert problem is not None
    assert problem.endswith("checkpoints/ in it holds step-00000003, step-00000006")
    for step in (3, 6):
        (made.directory / f"step-0000000{step}" / "roles" / "weights").unlink()
    with pytest.raises(ValueError, match=r"it is a run's directory, not a checkpoint; .*; give one"):
        find(str(tmp_path), made)


@pytest.mark.parametrize(("keep_last", "left"), [(0, [1, 2, 3, 4]), (1, [4]), (2, [3, 4]), (9, [1, 2, 3, 4])])
def test_the_newest_are_kept(tmp_path: Path, keep_last: int, left: list[int]) -> None:
    assert steps(store(tmp_path, 1, 2, 3, 4, keep_last=keep_last)) == left


def test_the_latest_of_nothing_is_none(tmp_path: Path) -> None:
    assert store(tmp_path).latest() is None


def test_what_was_just_written_is_never_deleted(tmp_path: Path) -> None:
    made = store(tmp_path, 6, 9, keep_last=2)
    assert save(made, 4).exists()
    assert steps(made) == [4, 9]


def test_an_old_one_that_cannot_be_deleted_is_told_and_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = store(tmp_path, 1, 2, keep_last=2)
    (made.directory / ".deleted-step-00000001" / "in the way").mkdir(parents=True)
    written = save(made, 3)
    assert steps(made) == [1, 2, 3]
    assert f"the old checkpoint {made.directory / 'step-00000001'} could not be deleted: " in caplog.text
    assert made.latest() == written


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


def test_what_a_user_names_is_found(tmp_path: Path) -> None:
    made, other = store(tmp_path / "mine", 1, 2, 3, best=BEST), store(tmp_path / "other", 4)
    save_scored(made, {2: 0.5})
    (made.directory / "step-00000003" / "roles" / "weights").unlink()
    first, second = made.directory / "step-00000001", made.directory / "step-00000002"
    assert find("auto", made) == find("best", made) == find(str(tmp_path / "mine"), other) == second
    assert find(str(first), other) == first
    assert find("auto", store(tmp_path / "new")) is None
    for name, problem in (
        (made.directory / "step-00000003", "roles/weights is missing"),
        (first / "roles", "it has no complete.json"),
        (tmp_path / "nowhere", "it does not exist"),
    ):
        with pytest.raises(ValueError, match=rf"at '{name}': {problem}.*; give one \(runs/.*/step-\.\.\.\)"):
            find(str(name), made)


def test_the_best_is_found_and_kept(tmp_path: Path) -> None:
    made = store(tmp_path, keep_last=1, best=BEST)
    assert made.best() is None
    save_scored(made, {1: 0.5, 2: 0.75, 3: 0.75, 4: float("nan"), 5: 0.25})
    save(made, 6)
    assert steps(made) == [2, 6], "the earliest of equals, and the newest"
    assert made.best() == made.require_best() == made.directory / "step-00000002"
    assert made.best_score() == 0.75


def test_the_lowest_may_be_best(tmp_path: Path) -> None:
    made = store(tmp_path, keep_last=1, best=Best(set="test", metric="loss", mode="min"))
    save_scored(made, {1: 2.0, 2: 1.0, 3: 1.5}, "eval/test/loss")
    assert steps(made) == [2, 3]
    assert made.best_score() == -1.0


def test_a_torn_best_counts_no_more(tmp_path: Path) -> None:
    made = store(tmp_path, best=BEST)
    save_scored(made, {1: 0.5, 2: 0.75})
    (made.directory / "step-00000002" / "roles" / "weights").unlink()
    assert made.best() == made.directory / "step-00000001"


def test_why_there_is_no_best_is_said(tmp_path: Path) -> None:
    says = r"neither the recipe nor a checkpoint in .*checkpoints names its evaluation set .*; use auto or a path"
    with pytest.raises(ValueError, match=says):
        store(tmp_path, 1).require_best()
    with pytest.raises(ValueError, match=r"has none with eval/test/pass@1; use auto or a path"):
        store(tmp_path, 2, best=BEST).require_best()


def test_what_best_meant_to_the_run_is_read_from_its_checkpoints(tmp_path: Path) -> None:
    config = {"checkpoint": {"best": {"set": "test", "metric": "loss", "mode": "min"}}}
    writes, reads = store(tmp_path), store(tmp_path, keep_last=1)
    for step, loss in ((1, 2.0), (2, 1.0), (3, 1.5)):
        save(writes, step, evaluation={"eval/test/loss": loss, "eval/test/pass@1": 1 / loss}, config=config)
    save(reads, 4, config={"checkpoint": None})
    assert steps(reads) == [2, 4], "the best stays, though the run goes on without a word of it"
    assert find("best", reads) == reads.directory / "step-00000002"
    with pytest.raises(ValueError, match="has none with eval/other/reward"):
        store(tmp_path, best=Best(set="other")).require_best()
