"""One child process as its parent sees it: started, heard, waited for, ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from io import FileIO
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from areal_lit.contracts.launcher import Death
from areal_lit.logs import LogPipe

LOG_TAIL_LINES = 30


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

    def popen(
        self, argv: Sequence[str], *, env: Mapping[str, str], log: FileIO, pass_fds: Sequence[int] = ()
    ) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own, with its output in ``log``."""
        popen = self._start(
            lambda: subprocess.Popen(
                argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                pass_fds=pass_fds, start_new_session=True,
            )
        )  # fmt: skip
        self.tell(f"+{popen.pid}")
        return popen

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
        self._reaper.wait()
        self._orders.put(None)


class Child:
    """A process, the thread that waits for it, and its one report of death.

    Args:
        on_death: told once, unless the end was asked for by ``stop``.
        hang_timeout_s: silence after which it counts as hung; 0: never.
        dumps_stacks: it runs ``worker.py`` and writes its threads' stacks at SIGUSR1.
    """

    def __init__(
        self,
        *,
        name: str,
        rank: int,
        popen: subprocess.Popen[bytes],
        log: LogPipe,
        spawner: Spawner,
        on_death: Callable[[Death], None],
        hang_timeout_s: float,
        dumps_stacks: bool = True,
    ) -> None:
        self.name = name
        self.rank = rank
        self.popen = popen
        self.log = log
        self.hang_timeout_s = hang_timeout_s
        self.dumps_stacks = dumps_stacks
        self.last_seen = time.monotonic()
        self.death: Death | None = None
        self.is_stopping = False
        self.at_end: list[Callable[[Death], None]] = []
        self.before_end: list[Callable[[], None]] = [lambda: log.join(timeout_s=2.0)]
        self.ended = threading.Event()
        self._spawner = spawner
        self._on_death = on_death
        self._lock = threading.Lock()

    def watch(self) -> None:
        """Start waiting for the end; call when ``at_end`` and ``before_end`` are complete."""
        threading.Thread(target=self._wait, name=f"areal-lit-wait-{self.name}-{self.rank}", daemon=True).start()

    def _wait(self) -> None:
        os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOWAIT)
        self.kill()  # its own children; while the process is not reaped its group id cannot be another's
        self._spawner.tell(f"-{self.popen.pid}")
        with self._lock:
            code = self.popen.wait()
        for drain in self.before_end:
            drain()
        self.end("was killed" if code < 0 else "exited", code)

    def seen(self) -> None:
        self.last_seen = time.monotonic()

    def check(self, now: float) -> None:
        """Declare it hung after too long a silence."""
        silence_s = now - self.last_seen
        if self.hang_timeout_s and silence_s > self.hang_timeout_s:
            self.hang(f"gave no sign of life for {silence_s:.1f} s")

    def hang(self, reason: str) -> None:
        """It answers no more: take its stacks into the log, report it, and kill it."""
        if self.death is None:
            if self.dumps_stacks:
                self._signal(signal.SIGUSR1)
                self.ended.wait(0.5)
            self.end(reason, None)
        self.kill()

    def end(self, reason: str, exit_code: int | None) -> None:
        """Record the death, once, and tell those who wait."""
        with self._lock:
            is_first = self.death is None
            if is_first:
                self.death = Death(
                    name=self.name, rank=self.rank, exit_code=exit_code, reason=reason, log_tail=self.log_tail()
                )
        if exit_code is not None:
            self.ended.set()
        if not is_first or self.death is None:
            return
        for tell in self.at_end:
            tell(self.death)
        if not self.is_stopping:
            self._on_death(self.death)

    def log_tail(self) -> str:
        """The last lines it wrote."""
        return "\n".join(self.log.tail().splitlines()[-LOG_TAIL_LINES:])

    def _signal(self, number: int) -> None:
        with self._lock:
            if self.popen.returncode is None:
                os.kill(self.popen.pid, number)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL for it and everything in its process group."""
        with self._lock:
            if self.popen.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.popen.pid, signal.SIGKILL)


def stop_children(children: Sequence[Child], ask: Callable[[Any], None], grace_s: float) -> None:
    """Ask all at once, wait up to ``grace_s`` for all, kill what is left and wait for that."""
    for child in children:
        child.is_stopping = True
        ask(child)
    deadline = time.monotonic() + grace_s
    for child in children:
        if not child.ended.wait(max(0.0, deadline - time.monotonic())):
            child.kill()
    for child in children:
        if not child.ended.wait(10.0):
            raise TimeoutError(
                f"{child.name} rank {child.rank} did not end within 10 s of SIGKILL; it may be stuck in the kernel"
            )
