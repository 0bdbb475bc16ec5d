"""The conformance suite of launchers.

def test_my_launcher(tmp_path):
    check_launcher(MyLauncher(), tmp_path)
"""

from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path

import numpy as np
import psutil

from areal_lit.contracts.launcher import Death, GroupSpec, Launcher, ProcessDied, ProcessSpec, WorkerGroup
from areal_lit.logs import Logs
from areal_lit.testing import launcher_case
from areal_lit.testing.launcher_case import (
    CALL_TIMEOUT_S,
    TOKEN,
    Marked,
    ask,
    await_deaths,
    expect_error,
    read_until,
    results,
)

ECHO_RANK = f"{launcher_case.__name__}:EchoRank"
SERVE_ECHO = f"{launcher_case.__name__}:serve_echo"


def check_launcher(launcher: Launcher, directory: Path) -> None:
    """Raises AssertionError for the first rule of the contract that the launcher breaks."""
    pickle.loads(pickle.dumps(launcher))
    with launcher.warm_up([launcher_case.__name__]):
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


def _check_set_up(launcher: Launcher, directory: Path, deaths: list[Death]) -> None:
    try:
        num_ranks = 1 if launcher.in_process else 2
        group = launcher.start_group(GroupSpec(name="suite", target=ECHO_RANK, num_ranks=num_ranks, num_threads=1))
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
        ProcessSpec(name="echo-0", target=SERVE_ECHO, kwargs={"greeting": "hello"}, num_threads=1)
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
    group = launcher.start_group(GroupSpec(name="own", target=ECHO_RANK, env={"SUITE": "7"}))
    (got,) = results(group.call("environment", "SUITE", "RANK", timeout_s=CALL_TIMEOUT_S))
    assert got == ["7", "0"], (
        f"a group's own environment is added to the usual one, expected SUITE 7 of rank 0, got {got}"
    )
    group.stop()


def _check_deadline(launcher: Launcher, deaths: list[Death]) -> None:
    group = launcher.start_group(GroupSpec(name="slow", target=ECHO_RANK))
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


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False
