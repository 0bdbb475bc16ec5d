"""The processes of a run under test, whoever their parents are by now: all inherit a mark in their environment."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

MARK = "AREAL_LIT_FAULT_RUN"
RUN_TIMEOUT_S = 120.0
GONE_TIMEOUT_S = 10.0


def marked(directory: Path) -> dict[str, str]:
    """The environment for a run in this directory, where modules of this folder can be imported."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, MARK: str(directory)}


def what_stays(directory: Path) -> list[str]:
    """Command lines of the run's processes that do not end soon; they are ended here."""
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while (left := list(processes_of(directory))) and time.monotonic() < deadline:
        time.sleep(0.05)
    told = [" ".join(process.cmdline()) for process in left]
    for process in left:
        process.kill()
    return told


def processes_of(directory: Path) -> Iterator[psutil.Process]:
    """Everything that a run in this directory started and that lives."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(directory) and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except psutil.Error:  # another user's, or it ended meanwhile
            continue


def gone(pid: int) -> bool:
    """Whether a process ends soon."""
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False
