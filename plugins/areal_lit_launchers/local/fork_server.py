"""A process that imports once what a run's processes need, and forks each of them in milliseconds.

It has one thread, touches no CUDA and constructs no component. Should an import break that, the processes it forks
become fresh interpreters, and say why in their logs.

    control socket   what to import; what to fork, with the new process's descriptors
    status sockets   one per process, which tells its id, then its exit code. Once the controller closes it, what is
                     left of the process's group is killed; not before is the id free for another process
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import selectors
import signal
import socket
import traceback
from dataclasses import dataclass
from functools import partial
from importlib import import_module

NUM_DESCRIPTORS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Preload:
    """Import modules, and for a class (``module:Class``) what its ``preload`` lists too."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Fork a process; with it come its descriptors: status socket, worker's socket, log."""

    name: str


Order = Preload | Fork


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """What a forked process finds itself to be.

    Args:
        connection: on which it is told what to do.
        unfit: why it has to become a fresh interpreter; empty when it need not.
    """

    name: str
    connection: socket.socket
    unfit: str


@dataclass(slots=True)
class _Child:
    """A forked process.

    Args:
        pidfd: readable when it ends; None after that.
        status: None once the controller has let go of it.
    """

    pid: int
    pidfd: int | None
    status: socket.socket | None


def serve(control: socket.socket, *, message_bytes: int) -> Forked:
    """Obey until the controller is gone, which ends this process. Returns in every process that is forked.

    Args:
        message_bytes: no order is longer.
    """
    gc.disable()  # imports leave no garbage, and looking for it takes a fifth of their time
    server = ForkServer(control, message_bytes=message_bytes)
    while True:
        if (forked := server.step()) is not None:
            gc.enable()
            return forked


class ForkServer:
    """Its sockets and its processes."""

    def __init__(self, control: socket.socket, *, message_bytes: int) -> None:
        self._control = control
        self._message_bytes = message_bytes
        self._children: list[_Child] = []
        self._selector = selectors.PollSelector()  # has nothing in the kernel that a forked process would share
        self._selector.register(control, selectors.EVENT_READ, self._obey)

    def step(self) -> Forked | None:
        """Wait for one thing to do and do it."""
        for key, _ in self._selector.select():
            forked: Forked | None = key.data()
            return forked
        return None

    def _obey(self) -> Forked | None:
        data, descriptors, _, _ = socket.recv_fds(self._control, self._message_bytes, NUM_DESCRIPTORS)
        if not data:
            os._exit(0)  # parent-death signals end what it forked
        order: Order = pickle.loads(data)
        if isinstance(order, Preload):
            for name in order.names:
                preload(name)
            return None
        status, connection = (socket.socket(fileno=fd) for fd in descriptors[:2])
        with open(descriptors[2], "wb", buffering=0) as log:
            return self._fork(order.name, status, connection, log.fileno())

    def _fork(self, name: str, status: socket.socket, connection: socket.socket, log_fd: int) -> Forked | None:
        unfit = why_unfit()
        gc.freeze()  # a collection in a forked process would write to the pages that it shares
        try:
            pid = os.fork()
        except OSError:  # no memory, or too many processes; a status without a word says that there is none
            traceback.print_exc()
            status.close()
            connection.close()
            return None
        if pid:
            connection.close()
            self._watch(pid, status)
            return None
        os.setsid()
        with status, contextlib.suppress(OSError):  # the controller has let go before it began
            status.send(b"%d" % os.getpid())
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        self._forget()
        return Forked(name=name, connection=connection, unfit=unfit)

    def _forget(self) -> None:
        """Close, in a forked process, what is the server's own."""
        self._selector.close()
        self._control.close()
        for child in self._children:
            if child.pidfd is not None:
                os.close(child.pidfd)
            if child.status is not None:
                child.status.close()

    def _watch(self, pid: int, status: socket.socket) -> None:
        pidfd = os.pidfd_open(pid)
        child = _Child(pid, pidfd, status)
        self._children.append(child)
        self._selector.register(pidfd, selectors.EVENT_READ, partial(self._report, child))
        self._selector.register(status, selectors.EVENT_READ, partial(self._let_go, child))

    def _report(self, child: _Child) -> None:
        """It has ended: tell how. While it is not reaped, its group's id cannot be another's."""
        assert child.pidfd is not None
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        child.pidfd = None
        ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        if child.status is None:
            self._reap(child)
            return
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        with contextlib.suppress(OSError):  # the controller lets go at this moment
            child.status.send(b"%d" % code)

    def _let_go(self, child: _Child) -> None:
        """The controller has closed its end."""
        assert child.status is not None
        self._selector.unregister(child.status)
        child.status.close()
        child.status = None
        for kill in (os.kill, os.killpg):  # it may not lead a group yet
            with contextlib.suppress(ProcessLookupError):
                kill(child.pid, signal.SIGKILL)
        if child.pidfd is None:
            self._reap(child)

    def _reap(self, child: _Child) -> None:
        os.waitpid(child.pid, 0)
        self._children.remove(child)


def preload(name: str) -> None:
    """Import a module; a failure is told here, and belongs to the process that needs the module."""
    module, _, attribute = name.partition(":")
    try:
        found = import_module(module)
        for needed in getattr(getattr(found, attribute), "preload", ()) if attribute else ():
            preload(needed)
    except (Exception, SystemExit):  # noqa: BLE001 - an import runs any code, sys.exit() included
        traceback.print_exc()


def why_unfit() -> str:
    """What forbids to go on in a forked copy of this process; empty when nothing does."""
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        return f"an import has started {len(threads) - 1} threads"
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        if any("/libcuda.so" in line for line in maps):
            return "an import has loaded the CUDA driver"
    return ""
