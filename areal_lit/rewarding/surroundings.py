"""Surroundings: what one call of a reward may change in its process and the next must not find changed."""

from __future__ import annotations

import os
import signal
import sys

HANDLED = (
    signal.SIGALRM, signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGUSR1,
    signal.SIGUSR2,
)  # fmt: skip


class Surroundings:
    """The working directory, output, signal handlers and timer of this process, as they are now."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        self._outputs = {number: os.dup(number) for number in (1, 2)}
        self._handlers = {number: signal.getsignal(number) for number in HANDLED}
        self._streams = {"stdout": sys.stdout, "stderr": sys.stderr}

    def restore(self) -> None:
        """Put everything back; a child that a reward forked and that came back from it ends here."""
        if os.getpid() != self._pid:
            os._exit(0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        os.fchdir(self._directory)
        for descriptor, copy in self._outputs.items():
            os.dup2(copy, descriptor)
        for descriptor, (name, stream) in enumerate(self._streams.items(), start=1):
            if stream.closed:
                stream = self._streams[name] = open(descriptor, "w", buffering=1, closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
