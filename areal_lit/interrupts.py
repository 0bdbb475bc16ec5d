"""Interrupts: the first Ctrl-C or SIGTERM ends the run after the current step, the second at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """The run was asked to stop while it waited for rollouts; nothing of a step is lost."""


class Interrupts:
    """A context manager that takes over SIGINT and SIGTERM (in the main thread; elsewhere it does nothing)."""

    def __init__(self) -> None:
        self.requested = False
        self._phase = ""
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Waiting for rollouts may be broken off; other phases are finished first."""
        self._phase = phase
        if phase == "wait_batch" and self.requested:
            raise Interrupted
        try:
            yield
        finally:
            self._phase = ""

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        if self._phase == "wait_batch":
            raise Interrupted
