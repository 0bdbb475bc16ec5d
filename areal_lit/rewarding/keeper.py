"""The process around a reward worker: whatever its rewards started ends with it, wherever it hid.

    controller ──starts──▶ keeper ──forks──▶ worker ──▶ what rewards start, maybe in sessions of their own

Orphans of the worker become the keeper's children (Linux), so it finds them all. It ends them when the worker ends,
when it is sent SIGTERM, and when the controller is gone.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from contextlib import suppress

from areal_lit.parent_death import adopt_orphans, die_with

END_TIMEOUT_S = 5.0


def fork_kept(parent_pid: int, descriptors: tuple[int, ...]) -> None:
    """Return in a child of this process, which itself becomes the keeper and ends as its child does.

    Args:
        parent_pid: of the controller.
        descriptors: what only the child is to hold.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: _end(-signal.SIGTERM))
    die_with(parent_pid, signal.SIGTERM)
    adopt_orphans()
    keeper_pid = os.getpid()
    worker_pid = os.fork()
    if not worker_pid:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with(keeper_pid, signal.SIGKILL)
        return
    for descriptor in descriptors:
        os.close(descriptor)
    while True:
        pid, status = os.wait()
        if pid == worker_pid:
            _end(os.waitstatus_to_exitcode(status))


def _end(exit_code: int) -> None:
    """Kill all descendants, then end in the way that ``exit_code`` says."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the kernel sends it once for every thread the controller loses
    import psutil

    deadline = time.monotonic() + END_TIMEOUT_S
    while (descendants := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        for process in descendants:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.002)
    if exit_code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL needs no default
            signal.signal(-exit_code, signal.SIG_DFL)
        os.kill(os.getpid(), -exit_code)
    os._exit(exit_code)
