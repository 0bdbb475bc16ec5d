"""What becomes of a process when its parent dies (Linux; elsewhere this does nothing)."""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def die_with(parent_pid: int, signum: int) -> None:
    """Have the kernel send ``signum`` when the parent is gone, however it went; exit if it already is."""
    _control(PR_SET_PDEATHSIG, signum)
    if sys.platform == "linux" and os.getppid() != parent_pid:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own has died."""
    _control(PR_SET_CHILD_SUBREAPER, 1)


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
