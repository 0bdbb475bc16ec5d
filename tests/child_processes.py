"""Processes below a test: found by their name, and seen to end on a machine that may be busy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

import psutil

END_TIMEOUT_S = 30.0


def children_called(name: str) -> list[psutil.Process]:
    """Processes below this one, however deep, with this word in their command lines."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if name in " ".join(process.cmdline()).split():
                found.append(process)
    return found


def await_gone(pids: Iterable[int], timeout_s: float = END_TIMEOUT_S) -> list[int]:
    """Those of these processes that do not end (a zombie that someone else must reap has ended)."""
    deadline = time.monotonic() + timeout_s
    while (left := [pid for pid in pids if _runs(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _runs(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
