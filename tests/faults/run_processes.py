"""The processes of a run under test, whoever their parents are by now: all inherit a mark in their environment."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
from child_processes import END_TIMEOUT_S

MARK = "AREAL_LIT_FAULT_RUN"
RUN_TIMEOUT_S = 240.0


def marked(directory: Path) -> dict[str, str]:
    """The environment for a run in this directory, where modules of this folder can be imported."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, MARK: str(directory)}


def what_stays(directory: Path) -> list[str]:
    """Command lines of the run's processes that do not end soon; they are ended here."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while (left := list(processes_of(directory))) and time.monotonic() < deadline:
        time.sleep(0.05)
    told = []
    for process in left:
        with suppress(psutil.NoSuchProcess):  # it has ended after all
            told.append(" ".join(process.cmdline()))
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
