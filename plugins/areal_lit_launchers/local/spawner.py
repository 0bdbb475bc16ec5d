"""Starts processes that end with this one, in any case."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from io import FileIO
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

END_TIMEOUT_S = 10.0
"""For what has been killed, or has nothing left to do."""


class Started(Protocol):
    """A process that was started.

    Its id, and so its group's, is no other's until ``release``; that of a forked process only while its fork server
    lives, whose death ends it and is seen at once: then a signal may find nobody.
    """

    pid: int
    """0 until it is known, or if there never is a process."""

    note: str
    """What is to say of its end beside the exit code."""

    def await_start(self) -> None:
        """Return when ``pid`` is known."""

    def await_end(self) -> int:
        """Its exit code once it has ended; a signal's number below zero."""

    def release(self) -> None:
        """Give its id back. It has to have ended, or not to have started: then it never will."""


class Spawner:
    """Starts processes from one thread that lives as long as this process, and guards them with a reaper.

    The kernel sends the parent-death signal when the *thread* that started a child ends, so no thread of a
    caller may start one. The reaper kills the children's own children too when this process is killed.
    """

    def __init__(self) -> None:
        self._orders: SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]] | None]
        self._orders = SimpleQueue()
        threading.Thread(target=self._run, name="areal-lit-spawner", daemon=True).start()
        reaper = [sys.executable, "-I", "-S", str(Path(__file__).with_name("reaper.py"))]
        self._reaper = self._start(
            lambda: subprocess.Popen(reaper, stdin=subprocess.PIPE, start_new_session=True, stdout=subprocess.DEVNULL)
        )
        self._lock = threading.Lock()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            start, future = order
            try:
                future.set_result(start())
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                future.set_exception(error)

    def _start(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        future: Future[subprocess.Popen[bytes]] = Future()
        self._orders.put((start, future))
        return future.result(timeout=60)

    def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], log: FileIO | int, pass_fds: Sequence[int] = ()
    ) -> Spawned:
        """Start a process in a session of its own, with its output in ``log``."""
        popen = self._start(
            lambda: subprocess.Popen(
                argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                pass_fds=pass_fds, start_new_session=True,
            )
        )  # fmt: skip
        self.tell(f"+{popen.pid}")
        return Spawned(popen)

    def tell(self, line: str) -> None:
        """Tell the reaper; its own death is no error, the kernel's signal still guards the children."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            assert self._reaper.stdin is not None
            self._reaper.stdin.write(f"{line}\n".encode())
            self._reaper.stdin.flush()

    def close(self) -> None:
        """End the reaper, with nothing left to reap, and the thread."""
        assert self._reaper.stdin is not None
        with contextlib.suppress(OSError):
            self._reaper.stdin.close()
        self._orders.put(None)
        await_end(self._reaper, "the reaper, after its last order,")


def await_end(process: subprocess.Popen[bytes], what: str) -> None:
    """Reap a process that is about to end. Raises TimeoutError naming it when it does not."""
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise TimeoutError(
            f"{what} has not ended within {END_TIMEOUT_S:g} s (process {process.pid}); it may be stuck in the kernel"
        ) from None


class Spawned:
    """A child of this process."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.pid = popen.pid
        self.note = ""
        self._popen = popen

    def await_start(self) -> None:
        """It has."""

    def await_end(self) -> int:
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def release(self) -> None:
        await_end(self._popen, "a killed process")
