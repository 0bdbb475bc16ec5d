"""Interrupts: the first Ctrl-C, SIGTERM or SIGHUP asks a run to end after the current step, the second ends it at once.

A handler never raises into a wait that is to be survived: a step's data would be taken and lost with the exception.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_AGAIN_S = 0.1
"""Long beside what is left of a call that has begun to return."""


class Interrupts:
    """A context manager that takes over SIGINT, SIGTERM and SIGHUP (in the main thread; elsewhere it does nothing).

    A SIGHUP that is ignored stays so: that is what ``nohup`` is for. A KeyboardInterrupt that came to nothing, because
    it was raised within a destructor or callback as imports run many of, is raised again.

    Until ``is_patient`` is set, while nothing can be lost, the first signal raises KeyboardInterrupt too. Once
    ``is_ending`` is set, when processes are being ended within seconds, no signal does anything any more.

    Args:
        on_request: told of the first signal, within the handler: it must neither wait nor take a lock.
    """

    def __init__(self, on_request: Callable[[], None]) -> None:
        self.requested = False
        self.is_patient = False
        self.is_ending = False
        self._on_request = on_request
        self._previous: dict[int, Any] = {}
        self._unraisable_hook = sys.unraisablehook

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            taken = [number for number in _SIGNALS if not (is_nohup and number == signal.SIGHUP)]
            self._previous = {number: signal.signal(number, self._handle) for number in taken}
            self._unraisable_hook, sys.unraisablehook = sys.unraisablehook, self._not_raised
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._previous:
            sys.unraisablehook = self._unraisable_hook

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_ending:
            return
        is_first, self.requested = not self.requested, True
        if not (is_first and self.is_patient):
            raise KeyboardInterrupt
        self._on_request()

    def _not_raised(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Python tells here of exceptions that nobody can catch. What is raised within this call is lost too."""
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            _thread.start_new_thread(_interrupt_later, ())  # unlike Thread.start it does not wait for the thread
        else:
            self._unraisable_hook(unraisable)


@contextmanager
def interrupted_after(timeout_s: float) -> Iterator[None]:
    """Within, the main thread is interrupted as by Ctrl-C once that takes longer; no other thread is.

    So SIGINT raises KeyboardInterrupt within, also where it is ignored, as it is in background jobs of a script.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    timer = threading.Timer(timeout_s, _interrupt)
    timer.daemon = True
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # a signal that it was about to send comes within
    finally:
        signal.signal(signal.SIGINT, previous)


def _interrupt_later() -> None:
    time.sleep(_AGAIN_S)
    _interrupt()


def _interrupt() -> None:
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.pthread_kill(main_thread, signal.SIGINT)
