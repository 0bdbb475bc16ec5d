"""What the launcher suite runs: ranks that echo, a process that serves, and what is waited for of them."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from areal_lit.contracts.component import Component
from areal_lit.contracts.launcher import Death
from areal_lit.contracts.strategy import Rank

CALL_TIMEOUT_S = 60.0
REACTION_TIMEOUT_S = 10.0
"""For what the launcher's own threads are to do about a process that has ended or printed."""

TOKEN = f"hf_{'A1b2C3d4' * 4}"
"""What looks like a secret, for a process to print."""


class EchoRank:
    """What the suite's ranks are."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.calls: list[Any] = []
        print(f"rank {rank.rank} speaks of {TOKEN}", flush=True)

    def place(self) -> tuple[int, int, int]:
        return self.rank.rank, self.rank.num_ranks, os.getpid()

    def environment(self, *names: str) -> list[str | None]:
        return [os.environ.get(name) for name in names]

    def echo(self, *values: Any) -> tuple[Any, ...]:
        return values

    def keep_promise(self) -> None:
        if isinstance(self.value, Exception):
            self.promised.set_exception(self.value)
        else:
            self.promised.set_result(self.value)

    def note(self, value: Any) -> list[Any]:
        self.calls.append(value)
        return self.calls

    def set_up(self, *components: Any) -> None:
        for component in components:
            component.mark = "set up"

    def fail(self, message: str) -> None:
        raise KeyError(message)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def later(self, value: Any) -> Future[Any]:
        """An answer that comes with ``keep_promise``."""
        self.promised: Future[Any] = Future()
        self.value = value
        return self.promised

    def exit(self, code: int) -> None:
        print("last words", flush=True)
        os._exit(code)


class Marked(Component):
    """A component that a rank changes."""

    mark = ""


def serve_echo(address: str, *, greeting: str) -> None:
    """What the suite's process is: it answers each connection with its greeting, and ends after ``bye``."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        while True:
            with server.accept()[0] as client:
                client.sendall(greeting.encode())
                if client.recv(8) == b"bye":
                    return


def results(futures: list[Future[Any]]) -> list[Any]:
    """What a call brought on every rank; raises what one of them raised."""
    return [future.result(timeout=CALL_TIMEOUT_S) for future in futures]


def expect_error(kind: type[Exception], call: Callable[[], Any], part: str) -> None:
    """The call raises this kind of error, with ``part`` in its message."""
    message = "nothing raised"
    try:
        call()
    except kind as error:
        message = str(error)
    assert part in message, f"expected a {kind.__name__} that speaks of {part!r}, got {message}"


def read_until(path: Path, part: str) -> str:
    """A log's text once it has this part, which another thread or process writes; without it at the deadline."""
    deadline = time.monotonic() + REACTION_TIMEOUT_S
    while part not in (text := path.read_text() if path.exists() else "") and time.monotonic() < deadline:
        time.sleep(0.02)
    return text


def await_deaths(deaths: list[Death], name: str, num: int) -> None:
    """Exactly ``num`` deaths of this name, one for each rank."""
    deadline = time.monotonic() + REACTION_TIMEOUT_S
    ranks: list[int] = []
    while time.monotonic() < deadline and len(ranks) < num:
        threading.Event().wait(0.02)
        ranks = sorted(death.rank for death in list(deaths) if death.name == name)
    assert ranks == list(range(num)), (
        f"on_death is called once for each rank of {name}, expected {num}, got ranks {ranks}"
    )


def ask(address: str, message: bytes) -> str:
    """What the suite's server says; waits for it to listen."""
    deadline = time.monotonic() + CALL_TIMEOUT_S
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(CALL_TIMEOUT_S)
                client.connect(address)
                answer = client.recv(100).decode()
                client.sendall(message)
                return answer
        except (FileNotFoundError, ConnectionRefusedError):
            assert time.monotonic() < deadline, f"nothing listens on {address} after {CALL_TIMEOUT_S:g} s"
            time.sleep(0.02)
