"""CheckpointWriter: has a checkpoint written and committed while training goes on, one at a time.

loop:    capture ─────▶ next steps ─────────────────────▶ (the next save, or the end, waits for the last one)
ranks:   copy to host ▶ next steps; a thread writes files ──┐
thread:  ───────────────────────────────────────────────────┴▶ sync to disk, list, rename, delete old ones
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal_lit.checkpointing.store import CheckpointStore
from areal_lit.files import FULL, WriteError

logger = logging.getLogger(__name__)

_POLL_S = 0.5
_GRACE_S = 60.0
"""How long the end of a failed run waits for the checkpoint that is being written."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be written; the message names the path, the bytes needed and free, and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What ``CheckpointWriter.write`` is given of a moment.

    Args:
        state: of ``state.json``.
        writing: done when the ranks' files are written.
    """

    state: Mapping[str, Any]
    writing: Sequence[Future[Any]] = ()


class CheckpointWriter:
    """Writes the checkpoints of a run.

    Args:
        timeout_s: longest that writing one may take.
        watch: raises when the run has failed elsewhere; called while waiting.
        on_failure: told from another thread, at once, why one was not written.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        timeout_s: float,
        watch: Callable[[], None] = lambda: None,
        on_failure: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._watch = watch
        self._on_failure = on_failure
        self._pending: _Pending | None = None
        self._committed: deque[tuple[int, Path]] = deque()

    def write(self, step: int, capture: Callable[[Path], Captured]) -> None:
        """Have ``capture`` fill a directory, then let it be committed in the background; waits for the one before.

        Raises what ``wait`` raises, for the one before, and what ``capture`` raises.
        """
        self.wait()
        try:
            partial = self._store.begin(step)
            captured = capture(partial)
        except WriteError as error:
            raise self._lost(step, error) from error
        self._pending = _Pending(step=step, path=partial, start_s=time.monotonic(), committed=Future())
        threading.Thread(
            target=self._finish, args=(self._pending, captured), name=f"areal-lit-checkpoint-{step}", daemon=True
        ).start()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being written now."""
        return self._pending is None or self._pending.committed.done()

    def check(self) -> None:
        """Raise TimeoutError when the one being written takes too long; its failure is told to ``on_failure``."""
        if self._pending is not None and not self.is_idle:
            self._pending.check(self._timeout_s)

    def take_committed(self) -> list[tuple[int, Path]]:
        """Step and path of those that were committed since the last call."""
        return [self._committed.popleft() for _ in range(len(self._committed))]

    def wait(self) -> None:
        """Return when nothing is being written any more.

        Raises:
            CheckpointError: the last one could not be written.
            TimeoutError: it took longer than ``timeout_s``.
        """
        if self._pending is None:
            return
        while not wait([self._pending.committed], timeout=_POLL_S).done:
            self._watch()
            self._pending.check(self._timeout_s)
        pending, self._pending = self._pending, None
        pending.committed.result()

    def finish(self) -> None:
        """Let the one being written come to its end after a failure, within a minute; its own failure is not raised."""
        if self._pending is not None and not wait([self._pending.committed], timeout=_GRACE_S).done:
            logger.error("the checkpoint of step %d was given up: %s", self._pending.step, self._pending.path)

    def _finish(self, pending: _Pending, captured: Captured) -> None:
        try:
            for future in captured.writing:
                future.result()
            path = self._store.commit(pending.path, pending.step, captured.state)
        except BaseException as error:  # noqa: BLE001 - it belongs to the training thread, which raises and reports it
            failure = error
            try:
                self._store.discard(pending.path)
                failure = self._explained(pending, error)
            finally:  # whoever waits for it is told, if need be as it was raised
                pending.committed.set_exception(failure)
                self._on_failure(failure)
            return
        logger.info("wrote %s in %.1f s", path, time.monotonic() - pending.start_s)
        self._committed.append((pending.step, path))
        try:
            self._store.prune(path)
        finally:
            pending.committed.set_result(path)

    def _explained(self, pending: _Pending, error: BaseException) -> BaseException:
        """A failed or overdue write in terms of the run; anything else as it is."""
        if isinstance(error, WriteError):
            explained: Exception = self._lost(pending.step, error)
        elif isinstance(error, TimeoutError):
            explained = pending.overdue(self._timeout_s)
        else:
            return error
        explained.__cause__ = error
        return explained

    def _lost(self, step: int, error: WriteError) -> CheckpointError:
        """With what is left to go on from, as far as the disk still says so."""
        try:
            newest = self._store.latest()
            left = f"the last whole one is {newest}" if newest else "there is no earlier one"
        except OSError as unread:
            left = f"whether there is an earlier one could not be read: {unread}"
        less = ", or need less: keep fewer (checkpoint.keep_last), export none (checkpoint.export_hf: false)"
        return CheckpointError(
            f"the checkpoint of step {step} is lost ({left}): {error}{less if error.errno in FULL else ''}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """A checkpoint that is being written."""

    step: int
    path: Path
    start_s: float
    committed: Future[Path]

    def check(self, timeout_s: float) -> None:
        if time.monotonic() - self.start_s > timeout_s:
            raise self.overdue(timeout_s)

    def overdue(self, timeout_s: float) -> TimeoutError:
        return TimeoutError(
            f"the checkpoint of step {self.step} is still not written to {self.path} after "
            f"checkpoint.timeout_s={timeout_s:g} s; the disk or network file system hangs or is too slow: look at it, "
            "or raise the limit"
        )
