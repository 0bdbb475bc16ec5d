"""Scratch: a directory of one process for temporary files, gone with the process however that ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "areal-lit-"
_LOCK = ".lock"
_LONGEST_BASE = 60
"""Unix sockets in a scratch directory have paths of at most 100 bytes."""


class Scratch:
    """A new directory, locked while this process lives; those of processes that were killed are removed.

    The lock, not a process id, tells who lives: machines and containers that share the file system see each other's.

    Args:
        base: where; by default shared memory, or where there is none the directory of temporary files.
    """

    def __init__(self, base: Path | None = None) -> None:
        base = base or _default_base()
        base.mkdir(parents=True, exist_ok=True)
        remove_abandoned(base)
        made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=base))
        self._lock = (made / _LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # under its name only once it is locked: others remove what is not
        self.path = made.rename(base / made.name.removeprefix("."))

    def close(self) -> None:
        """Remove it with all that is in it; idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def remove_abandoned(base: Path) -> None:
    """Remove scratch directories whose process is gone; other users' stay."""
    for path in base.glob(f"{PREFIX}*"):
        try:
            with (path / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:  # in use, another user's, or removed by another process at this moment
            continue


def _default_base() -> Path:
    if os.access(SHARED_MEMORY, os.W_OK):
        return SHARED_MEMORY
    temporary = tempfile.gettempdir()
    return Path(temporary if len(temporary) <= _LONGEST_BASE else "/tmp")
