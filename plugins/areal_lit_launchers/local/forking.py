"""The fork server (``fork_server.py``) and the processes it forks, as the controller sees them."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from io import FileIO
from pathlib import Path

from areal_lit.logs import LogPipe, Logs
from areal_lit_launchers.local.commands import SPIN_COUNT, WORKER
from areal_lit_launchers.local.fork_server import Fork, Order, Preload
from areal_lit_launchers.local.spawner import Spawner

ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",  # numpy's would start its threads when it is imported
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # a module that asks whether there is CUDA must not initialise it
    "PYTHONUNBUFFERED": "1",
    "GOMP_SPINCOUNT": SPIN_COUNT,
}
"""What the fork server needs, beside the controller's environment, to stay fit for forking."""

TITLE = f"{'fork-server':<80}"
"""Its last argument leaves room for the arguments of those that it forks, which they write over its own."""


def can_fork() -> bool:
    """Whether this system has what a fork server needs: Linux 5.3 or newer."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


FORK_SERVER: ContextVar[ForkServer | None] = ContextVar("fork_server", default=None)
"""The one that launchers which are set up in this context fork from."""


@contextmanager
def importing_ahead(names: Sequence[str]) -> Iterator[None]:
    """A context with a fork server that imports ``names``; if there is one already, it imports them too."""
    if (known := FORK_SERVER.get()) is not None:
        known.preload(names)
        yield
        return
    server = ForkServer()
    token = FORK_SERVER.set(server)
    try:
        server.preload(names)
        yield
    finally:
        FORK_SERVER.reset(token)
        server.close()


class ForkServer:
    """A process that forks others, which then have what it has imported."""

    def __init__(self) -> None:
        self._spawner = Spawner()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._output = os.pipe()  # holds what is printed before there is a log
        self._log: LogPipe | None = None
        with theirs:
            self._process = self._spawner.spawn(
                [sys.executable, WORKER, "fork", str(os.getpid()), str(theirs.fileno()), TITLE],
                env={**os.environ, **ENVIRONMENT}, log=self._output[1], pass_fds=(theirs.fileno(),),
            )  # fmt: skip
        self._control.send(pickle.dumps(sys.path))

    @property
    def pid(self) -> int:
        return self._process.pid

    def preload(self, names: Sequence[str]) -> None:
        """Begin to import modules, and what the ``preload`` of each ``module:Class`` lists; returns at once."""
        self._send(Preload(names=tuple(names)))

    def log_to(self, path: Path, logs: Logs) -> None:
        """Where its own output goes, all that it has printed so far included; only the first place that is given."""
        if self._log is None:
            self._log = LogPipe(logs.open(path), self._output)
            self._log.close_writer()

    def fork(self, name: str, connection: socket.socket, log: FileIO) -> ForkedProcess:
        """A process that serves ``connection`` (see ``worker.py``), once all that was to be imported is."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._send(Fork(name=name), theirs.fileno(), connection.fileno(), log.fileno())
        log_path = self._log.path if self._log else "its log"
        return ForkedProcess(ours, lambda pid: self._spawner.tell(f"+{pid}"), f"see {log_path}")

    def kill(self) -> None:
        """End it, in the middle of an import too, and with it whatever it has forked or was to fork."""
        os.kill(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End it and everything of it. Raises TimeoutError naming what does not end."""
        with ExitStack() as duties:  # each is done whatever the others raise
            if self._log is not None:
                duties.callback(self._log.join, timeout_s=2.0)
            else:
                for end in self._output:
                    duties.callback(os.close, end)
            duties.callback(self._spawner.close)
            duties.callback(self._control.close)
            duties.callback(self._process.release)
            self.kill()

    def _send(self, order: Order, *descriptors: int) -> None:
        with suppress(ConnectionError):  # it is dead; the processes that it does not fork are reported
            socket.send_fds(self._control, [pickle.dumps(order)], descriptors)


class ForkedProcess:
    """A child of the fork server.

    Args:
        status: tells its id, then its exit code; closed without, the server is dead, and so is its child.
        on_start: told the id.
        advice: where to look when the fork server has failed.
    """

    def __init__(self, status: socket.socket, on_start: Callable[[int], None], advice: str) -> None:
        self.pid = 0
        self.note = ""
        self._status = status
        self._on_start = on_start
        self._advice = advice
        self._has_ended = False

    def await_start(self) -> None:
        self.pid = self._told() or 0
        if self.pid:
            self._on_start(self.pid)

    def await_end(self) -> int:
        code = self._told()
        self._has_ended = True
        if code is None:
            self.note = f", or never began: its fork server has ended or could not fork, {self._advice}"
            return -signal.SIGKILL
        return code

    def release(self) -> None:
        with suppress(OSError):  # the server was first
            self._status.shutdown(socket.SHUT_RDWR)  # also under a thread that reads it
        if self._has_ended:
            self._status.close()

    def _told(self) -> int | None:
        try:
            data = self._status.recv(64)
        except OSError:
            return None
        return int(data) if data else None
