"""One child process as its parent sees it: started, heard, waited for, ended."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from areal_lit.contracts.launcher import Death
from areal_lit.logs import LogPipe
from areal_lit_launchers.local.spawner import Spawner, Started

LOG_TAIL_LINES = 30
FIRST_SIGN_S = 60.0
"""How long a process may take to its first sign of life: its interpreter starts, on a machine that may be busy."""
STACKS_S = 3.0
"""How long one that answers no more may take to write its stacks; one that is stopped never writes them."""
QUIET_S = 0.2
"""After so long without a further line they are whole."""


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
        process: Started,
        log: LogPipe,
        spawner: Spawner,
        on_death: Callable[[Death], None],
        hang_timeout_s: float,
        dumps_stacks: bool = True,
    ) -> None:
        self.name = name
        self.rank = rank
        self.process = process
        self.log = log
        self.hang_timeout_s = hang_timeout_s
        self.dumps_stacks = dumps_stacks
        self.last_seen = time.monotonic()
        self.has_spoken = False
        self.death: Death | None = None
        self.is_stopping = False
        self.at_end: list[Callable[[Death], None]] = []
        self.before_end: list[Callable[[], None]] = [lambda: log.join(timeout_s=2.0)]
        self.ended = threading.Event()
        self._spawner = spawner
        self._on_death = on_death
        self._is_released = False
        self._lock = threading.Lock()

    def watch(self) -> None:
        """Start waiting for the end; call when ``at_end`` and ``before_end`` are complete."""
        threading.Thread(target=self._wait, name=f"areal-lit-wait-{self.name}-{self.rank}", daemon=True).start()

    def _wait(self) -> None:
        self.process.await_start()
        self.last_seen = time.monotonic()
        code = self.process.await_end()
        self.kill()  # its own children
        self._spawner.tell(f"-{self.process.pid}")
        with self._lock:
            self._is_released = True
            self.process.release()
        for drain in self.before_end:
            drain()
        self.end(("was killed" if code < 0 else "exited") + self.process.note, code)

    def seen(self) -> None:
        """It gave a sign of life."""
        self.has_spoken = True
        self.last_seen = time.monotonic()

    def check(self, now: float) -> None:
        """Declare it hung after too long a silence."""
        silence_s = now - self.last_seen
        limit_s = self.hang_timeout_s if self.has_spoken else max(self.hang_timeout_s, FIRST_SIGN_S)
        if self.process.pid and self.hang_timeout_s and silence_s > limit_s:
            self.hang(f"gave no sign of life for {silence_s:.1f} s")

    def hang(self, reason: str) -> None:
        """It answers no more: take its stacks into the log, report it, and kill it."""
        if self.death is None:
            if self.dumps_stacks:
                self._take_stacks()
            self.end(reason, None)
        self.kill()

    def _take_stacks(self) -> None:
        """Have it write its threads' stacks, and wait until they are in the log."""
        before = newest = self.log.tail()
        deadline = time.monotonic() + STACKS_S
        self._signal(signal.SIGUSR1)
        while not self.ended.wait(QUIET_S) and time.monotonic() < deadline:
            seen, newest = newest, self.log.tail()
            if newest == seen != before:
                return

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
            if self.process.pid and not self._is_released:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.process.pid, number)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL for it and everything in its process group; if it has not started, it never will."""
        with self._lock:
            if self._is_released:
                return
            if not self.process.pid:
                self.process.release()
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)


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
