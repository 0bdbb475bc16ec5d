"""A process beside the ranks (an engine, a server), under the launcher ``local``."""

from __future__ import annotations

import contextlib
import http.client
import os
import threading
import time

from areal_lit.contracts.launcher import Process, ProcessSpec
from areal_lit_launchers.local.channel import Channel
from areal_lit_launchers.local.child import Child, stop_children

POLL_INTERVAL_S = 0.1


class LocalProcess(Process):
    """A watched process. It counts as hung when its server does not listen within ``start_timeout_s``."""

    def __init__(self, spec: ProcessSpec, child: Child, address: str, ports: tuple[int, ...], grace_s: float) -> None:
        self.name = spec.name
        self.address = address
        self.ports = ports
        self.child = child
        self.grace_s = grace_s
        self.spec = spec
        child.watch()
        if spec.target or spec.health_path:
            threading.Thread(target=self._await_server, name=f"areal-lit-ready-{spec.name}", daemon=True).start()

    def is_alive(self) -> bool:
        return self.child.death is None

    def check(self, now: float) -> None:
        self.child.check(now)

    def stop(self, grace_s: float = 5.0) -> None:
        stop_children([self.child], Child.terminate, grace_s)

    def _await_server(self) -> None:
        deadline = time.monotonic() + self.spec.start_timeout_s
        while not self._listens():
            if self.child.ended.wait(POLL_INTERVAL_S):
                return
            if time.monotonic() > deadline:
                self.child.hang(f"did not listen on {self.address} within {self.spec.start_timeout_s:g} s")
                return

    def _listens(self) -> bool:
        if self.spec.target:
            return os.path.exists(self.address)  # connecting would be a client that says nothing
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self.ports[0], timeout=1.0)
            with contextlib.closing(connection):
                connection.request("GET", self.spec.health_path)
                return connection.getresponse().status == 200
        return False


def hear(channel: Channel, child: Child) -> None:
    """Take a process's heartbeats, until it says that its target has returned: then its end is no death."""
    with contextlib.suppress(EOFError, OSError):
        channel.receive()
        child.is_stopping = True
