"""Checkpoints in the background: one at a time, whole or not at all, and nobody waits for ever."""

from __future__ import annotations

import errno
import logging
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from areal_lit.checkpointing import Captured, Checkpoint, CheckpointError, CheckpointStore, CheckpointWriter
from areal_lit.checkpointing.reading import STATE_PARTS
from areal_lit.files import WriteError, writing

WAIT_S = 30.0


def capture(writing: Future[Any] | None = None) -> Callable[[Path], Captured]:
    def fill(directory: Path) -> Captured:
        (directory / "weights").write_bytes(b"123456")
        return Captured(state={part: {} for part in STATE_PARTS}, writing=[writing] if writing else [])

    return fill


def writer(tmp_path: Path, **options: Any) -> tuple[CheckpointWriter, CheckpointStore]:
    store = CheckpointStore(tmp_path / "checkpoints", Checkpoint(keep_last=0))
    return CheckpointWriter(store, **{"timeout_s": WAIT_S, **options}), store


def full_disk() -> WriteError:
    return WriteError(errno.ENOSPC, "no space left: '/disk' (3.0 MiB are needed, 1.0 MiB were free); free space there")


def test_the_loop_goes_on_while_files_are_written_and_the_next_save_waits(tmp_path: Path) -> None:
    waits = threading.Event()
    made, store = writer(tmp_path, watch=waits.set)  # asked while waiting
    writing: Future[None] = Future()
    made.write(1, capture(writing))
    assert not made.is_idle
    assert store.names() == [], "nothing is committed before all files are written"
    threading.Thread(target=lambda: (waits.wait(WAIT_S), writing.set_result(None)), daemon=True).start()
    made.write(2, capture())
    assert waits.is_set()
    assert store.names()[0] == "step-00000001"
    made.wait()
    assert store.names() == ["step-00000001", "step-00000002"]
    assert made.take_committed() == [(step, store.directory / f"step-0000000{step}") for step in (1, 2)]
    assert made.take_committed() == []
    made.wait()


def test_a_full_disk_is_told_at_once_with_the_way_out_and_leaves_the_last_whole_one(tmp_path: Path) -> None:
    told: list[BaseException] = []
    heard = threading.Event()
    made, store = writer(tmp_path, on_failure=lambda error: (told.append(error), heard.set()))
    made.write(1, capture())
    made.wait()
    failed: Future[None] = Future()
    failed.set_exception(full_disk())
    made.write(2, capture(failed))
    assert heard.wait(WAIT_S)
    with pytest.raises(CheckpointError) as raised:
        made.wait()
    assert raised.value is told[0]
    newest = re.escape(str(store.directory / "step-00000001"))
    assert re.search(
        rf"^the checkpoint of step 2 is lost \(the last whole one is {newest}\): .*'/disk' \(3\.0 MiB are needed, "
        r"1\.0 MiB were free\); free space there, or need less: keep fewer \(checkpoint\.keep_last\), export none",
        str(raised.value),
    )
    assert [path.name for path in store.directory.iterdir()] == ["step-00000001"]
    made.write(3, capture())
    made.wait()


def test_a_disk_that_is_full_at_once_is_explained_too(tmp_path: Path) -> None:
    def fail(directory: Path) -> Captured:
        raise full_disk()

    made, store = writer(tmp_path)
    with pytest.raises(CheckpointError, match=r"step 4 is lost \(there is no earlier one\): .*'/disk'"):
        made.write(4, fail)
    assert made.is_idle
    assert store.latest() is None


def test_a_place_that_cannot_be_written_to_is_named_without_talk_of_room(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").touch()
    made, _ = writer(tmp_path)
    with pytest.raises(CheckpointError, match=r"step 1 is lost \(there is no earlier one\): .*Not a directory: '.*'$"):
        made.write(1, capture())


@pytest.mark.parametrize("error", [TimeoutError("the rollout state within 60 s"), ConnectionError("policy rank 0")])
def test_what_is_no_fault_of_the_disk_stays_what_it_is_while_the_state_is_taken(tmp_path: Path, error: OSError) -> None:
    def fail(directory: Path) -> Captured:
        raise error

    made, _ = writer(tmp_path)
    with pytest.raises(type(error)) as raised:
        made.write(1, fail)
    assert raised.value is error


class Unreadable(CheckpointStore):
    """On a disk that cannot be read any more."""

    def __init__(self, directory: Path, error: Exception) -> None:
        super().__init__(directory, Checkpoint())
        self.error = error

    def latest(self) -> Path | None:
        raise self.error


def test_a_loss_is_told_when_what_is_left_cannot_be_read(tmp_path: Path) -> None:
    failed: Future[None] = Future()
    failed.set_exception(full_disk())
    made = CheckpointWriter(Unreadable(tmp_path, OSError(errno.EIO, "Input/output error")), timeout_s=WAIT_S)
    made.write(1, capture(failed))
    with pytest.raises(CheckpointError, match=r"step 1 is lost \(whether .* could not be read: .*Input/outp.*'/disk'"):
        made.wait()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loss_that_cannot_be_explained_is_told_as_it_was_raised(tmp_path: Path) -> None:
    failed: Future[None] = Future()
    failed.set_exception(error := full_disk())
    told: list[BaseException] = []
    store = Unreadable(tmp_path, ValueError("no such luck"))
    made = CheckpointWriter(store, timeout_s=WAIT_S, on_failure=told.append)
    made.write(1, capture(failed))
    with pytest.raises(WriteError, match="no space left"):
        made.wait()
    assert told == [error]


def test_other_failures_stay_what_they_are(tmp_path: Path) -> None:
    died: Future[None] = Future()
    died.set_exception(ConnectionError("policy rank 0 ended"))
    made, store = writer(tmp_path)
    made.write(1, capture(died))
    with pytest.raises(ConnectionError, match="policy rank 0 ended"):
        made.wait()
    assert not list(store.directory.iterdir())


def test_a_wait_has_a_deadline_that_is_named(tmp_path: Path) -> None:
    made, _ = writer(tmp_path, timeout_s=0.01)
    made.write(1, capture(Future()))
    threading.Event().wait(0.02)
    says = r"step 1 is still not written to .*after checkpoint\.timeout_s=0\.01 s"
    with pytest.raises(TimeoutError, match=says):
        made.check()
    with pytest.raises(TimeoutError, match=says):
        made.wait()


def test_a_rank_that_hangs_in_a_save_is_told_in_terms_of_the_checkpoint(tmp_path: Path) -> None:
    late: Future[None] = Future()
    late.set_exception(TimeoutError("policy rank 0 did not answer save within 30 s"))
    made, _ = writer(tmp_path)
    made.write(1, capture(late))
    with pytest.raises(TimeoutError, match=r"step 1 is still not written .* hangs or is too slow") as raised:
        made.wait()
    assert "policy rank 0" in str(raised.value.__cause__)


def test_a_wait_ends_when_the_run_failed_elsewhere(tmp_path: Path) -> None:
    def watch() -> None:
        raise ConnectionError("engine-0 ended")

    made, _ = writer(tmp_path, watch=watch)
    made.write(1, capture(Future()))
    with pytest.raises(ConnectionError, match="engine-0 ended"):
        made.wait()


def test_a_failed_run_lets_its_checkpoint_be_committed(tmp_path: Path) -> None:
    made, store = writer(tmp_path)
    made.finish()
    writing: Future[None] = Future()
    made.write(1, capture(writing))
    threading.Timer(0.1, writing.set_result, [None]).start()
    made.finish()
    assert store.names() == ["step-00000001"]
    lost: Future[None] = Future()
    lost.set_exception(full_disk())
    made.write(2, capture(lost))
    made.finish()
    assert made.take_committed() == [(1, store.directory / "step-00000001")]


def test_needed_and_free_bytes_are_named(tmp_path: Path) -> None:
    with (
        pytest.raises(
            WriteError,
            match=r"File too large: '.*file' \(1,536\.0 MiB are needed, [\d,.]+ MiB were free\); free space there$",
        ),
        writing(tmp_path / "file", needed_bytes=1536 * 2**20),
    ):
        raise OSError(errno.EFBIG, "File too large")


def test_a_commit_says_how_long_it_took(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="areal_lit")
    made, _ = writer(tmp_path)
    made.write(1, capture())
    made.wait()
    assert re.search(r"step-00000001 in \d+\.\d s", caplog.text)


class Undiscarding(CheckpointStore):
    """Cannot even remove what was not committed."""

    def commit(self, partial: Path, step: int, state: Any) -> Path:
        raise OSError(errno.EIO, "the disk is gone")

    def discard(self, partial: Path) -> None:
        if partial.exists():
            raise OSError(errno.EIO, "and nothing on it can be removed")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_waits_is_told_at_once_when_the_remains_of_a_failed_one_cannot_be_removed(tmp_path: Path) -> None:
    told: list[BaseException] = []
    made = CheckpointWriter(Undiscarding(tmp_path, Checkpoint()), timeout_s=WAIT_S, on_failure=told.append)
    made.write(1, capture())
    with pytest.raises(OSError, match="the disk is gone"):
        made.wait()
    assert [str(each) for each in told] == ["[Errno 5] the disk is gone"]
