"""The conformance suite of launchers.

def test_my_launcher(tmp_path):
    check_launcher(MyLauncher(), tmp_path)
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from areal_lit.contracts.component import Component
from areal_lit.contracts.launcher import Death, GroupSpec, Launcher, ProcessDied, ProcessSpec, WorkerGroup
from areal_lit.contracts.strategy import Rank
from areal_lit.logs import Logs

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


def check_launcher(launcher: Launcher, directory: Path) -> None:
    """Raises AssertionError for the first rule of the contract that the launcher breaks."""
    pickle.loads(pickle.dumps(launcher))
    with launcher.warm_up([__name__]):
        before = set(psutil.Process().children(recursive=True))
        deaths: list[Death] = []
        launcher.setup(directory, deaths.append, Logs())
        scratch = launcher.scratch
        assert scratch is None or scratch.is_dir(), f"scratch must be a directory, got {scratch}"
        _check_set_up(launcher, directory, deaths)
        launcher.stop()
        left = [p for p in psutil.Process().children(recursive=True) if p not in before and _runs(p)]
        assert not left, f"stop() must end every process, these are left: {left}"
        assert scratch is None or not scratch.exists(), f"stop() must remove {scratch}, its scratch directory"
        assert launcher.scratch is None, f"scratch must be None after stop(), got {launcher.scratch}"


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _check_set_up(launcher: Launcher, directory: Path, deaths: list[Death]) -> None:
    try:
        num_ranks = 1 if launcher.in_process else 2
        group = launcher.start_group(
            GroupSpec(name="suite", target=f"{__name__}:EchoRank", num_ranks=num_ranks, num_threads=1)
        )
        _check_calls(group)
        _check_errors(group)
        _check_promises(group)
        _check_values(group)
        _check_process(launcher)
        if launcher.in_process:
            return
        _check_processes_of_ranks(group, directory)
        _check_own_environment(launcher)
        assert not deaths, f"no process may be reported dead while all live, got {deaths}"
        _check_deadline(launcher, deaths)
        _check_exit(group, deaths)
    finally:
        launcher.stop()


def _check_calls(group: WorkerGroup) -> None:
    places = results(group.call("place", timeout_s=CALL_TIMEOUT_S))
    expected = [(rank, group.num_ranks) for rank in range(group.num_ranks)]
    assert [place[:2] for place in places] == expected, (
        f"ranks must know their place, expected {expected}, got {places}"
    )
    own = [f"for {rank}" for rank in range(group.num_ranks)]
    got = results(group.call("echo", "shared", per_rank=own, timeout_s=CALL_TIMEOUT_S))
    wanted = [(value, "shared") for value in own]
    assert got == wanted, f"per_rank values come first, one for each rank: expected {wanted}, got {got}"
    expect_error(ValueError, lambda: group.call("echo", per_rank=["too", "many", "values"], timeout_s=1.0), "per_rank")
    futures = [group.call("note", number, timeout_s=CALL_TIMEOUT_S) for number in range(20)]
    for rank, noted in enumerate(results(futures[-1])):
        assert noted == list(range(20)), f"calls of one rank run in order, rank {rank} saw {noted}"


def _check_errors(group: WorkerGroup) -> None:
    for rank, future in enumerate(group.call("fail", "spilt milk", timeout_s=CALL_TIMEOUT_S)):
        error = future.exception(timeout=CALL_TIMEOUT_S)
        assert isinstance(error, KeyError), f"a method's exception reaches the caller as it was, got {error!r}"
        told = " ".join([str(error.__cause__), *getattr(error, "__notes__", [])])
        assert f"{group.name} rank {rank}" in told, f"an exception says which rank raised it, got {told!r}"
    values = results(group.call("echo", 1, timeout_s=CALL_TIMEOUT_S))
    assert values == [(1,)] * group.num_ranks, "a rank goes on after an exception"


def _check_promises(group: WorkerGroup) -> None:
    for value in ("at last", KeyError("never")):
        promised = group.call("later", value, timeout_s=CALL_TIMEOUT_S)
        results(group.call("place", timeout_s=CALL_TIMEOUT_S))
        assert not any(future.done() for future in promised), (
            "a method's future is answered when it is done, not before"
        )
        results(group.call("keep_promise", timeout_s=CALL_TIMEOUT_S))
        for rank, future in enumerate(promised):
            got = future.exception(timeout=CALL_TIMEOUT_S) or future.result()
            assert repr(got) == repr(value), (
                f"what a future brings is the answer, expected {value!r} of {rank}, got {got!r}"
            )


def _check_values(group: WorkerGroup) -> None:
    x = np.arange(200_000, dtype=np.float32) % 7
    values = results(group.call("echo", [1, {"x": x}], timeout_s=CALL_TIMEOUT_S))
    assert all(np.array_equal(value[0][1]["x"], x) for value in values), "large arrays travel unchanged, both ways"
    component = Marked()
    results(group.call("set_up", component, timeout_s=CALL_TIMEOUT_S))
    results(group.call("set_up", per_rank=[component] * group.num_ranks, timeout_s=CALL_TIMEOUT_S))
    assert not component.mark, f"a component arrives as a copy, this one was {component.mark} by a rank"


def _check_process(launcher: Launcher) -> None:
    process = launcher.start_process(
        ProcessSpec(name="echo-0", target=f"{__name__}:serve_echo", kwargs={"greeting": "hello"}, num_threads=1)
    )
    assert len(process.address) <= 100, f"a socket path has at most 100 characters, got {process.address}"
    answer = ask(process.address, b"more")
    assert answer == "hello", f"the target's server answers at its address, got {answer!r}"
    assert process.is_alive(), "a process that serves is alive"
    if launcher.in_process:
        ask(process.address, b"bye")
    process.stop()
    assert not process.is_alive(), "stop() ends the process"


def _check_processes_of_ranks(group: WorkerGroup, directory: Path) -> None:
    pids = {place[2] for place in results(group.call("place", timeout_s=CALL_TIMEOUT_S))}
    assert len(pids | {os.getpid()}) == group.num_ranks + 1, "each rank is a process of its own"
    names = ("RANK", "WORLD_SIZE", "OMP_NUM_THREADS")
    for rank, got in enumerate(results(group.call("environment", *names, timeout_s=CALL_TIMEOUT_S))):
        expected = [str(rank), str(group.num_ranks), "1"]
        assert got == expected, f"environment {names} of rank {rank}: expected {expected}, got {got}"
        log = read_until(directory / f"{group.name}-{rank}.log", f"rank {rank} speaks")
        assert f"rank {rank} speaks" in log, f"what a rank prints is in its log, got {log!r}"
        assert TOKEN not in log, f"secrets are hidden before they are on disk (areal_lit.logs.LogPipe), got {log!r}"
    expect_error(ValueError, lambda: group.call("echo", lambda: 1, timeout_s=1.0), "module")


def _check_own_environment(launcher: Launcher) -> None:
    group = launcher.start_group(GroupSpec(name="own", target=f"{__name__}:EchoRank", env={"SUITE": "7"}))
    (got,) = results(group.call("environment", "SUITE", "RANK", timeout_s=CALL_TIMEOUT_S))
    assert got == ["7", "0"], (
        f"a group's own environment is added to the usual one, expected SUITE 7 of rank 0, got {got}"
    )
    group.stop()


def _check_deadline(launcher: Launcher, deaths: list[Death]) -> None:
    group = launcher.start_group(GroupSpec(name="slow", target=f"{__name__}:EchoRank"))
    results(group.call("place", timeout_s=CALL_TIMEOUT_S))
    error = group.call("sleep", 600.0, timeout_s=0.3)[0].exception(timeout=CALL_TIMEOUT_S)
    assert isinstance(error, TimeoutError), f"a call past its deadline raises TimeoutError, got {error!r}"
    for part in ("sleep", "slow rank 0"):
        assert part in str(error), f"a TimeoutError names the method and the rank, {part!r} is not in {error}"
    await_deaths(deaths, "slow", 1)


def _check_exit(group: WorkerGroup, deaths: list[Death]) -> None:
    for rank, future in enumerate(group.call("exit", 3, timeout_s=CALL_TIMEOUT_S)):
        error = future.exception(timeout=CALL_TIMEOUT_S)
        assert isinstance(error, ProcessDied), f"a call on a rank that dies raises ProcessDied, got {error!r}"
        for part in (f"rank {rank}", "exit code 3", "last words"):
            assert part in str(error), (
                f"ProcessDied carries role, rank, exit code and log tail; {part!r} is not in {error}"
            )
    await_deaths(deaths, group.name, group.num_ranks)
    late = group.call("place", timeout_s=1.0)[0].exception(timeout=CALL_TIMEOUT_S)
    assert isinstance(late, ProcessDied), f"a call on a dead rank raises ProcessDied, got {late!r}"
    group.stop()
    await_deaths(deaths, group.name, group.num_ranks)


def results(futures: list[Future[Any]]) -> list[Any]:
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
