"""Scratch: a directory of one process for temporary files, gone with the process however that ends."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from areal_lit.locks import hold, is_held

SHARED_MEMORY = Path("/dev/shm")
LONGEST_BASE = 60
"""Characters of the directory around: paths of Unix sockets in a scratch directory must stay under the kernel's 108."""

_PREFIX = "areal-lit-scratch-"
_LOCK = ".scratch-lock"


class Scratch:
    """A new directory, locked while this process lives; those of processes that were killed are removed.

    Args:
        base: where; by default shared memory, or where there is none the directory of temporary files.
    """

    def __init__(self, base: Path | None = None) -> None:
        base = base or _default_base()
        base.mkdir(parents=True, exist_ok=True)
        for path in abandoned(base):
            with suppress(OSError), hold(path / _LOCK):  # another process is first
                shutil.rmtree(path, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=base))
        self._lock = hold(made / _LOCK)
        # under its name only once it is locked: others remove what is not
        self.path = made.rename(base / made.name.removeprefix("."))

    def close(self) -> None:
        """Remove it with all that is in it; idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def abandoned(base: Path) -> list[Path]:
    """This user's scratch directories whose process is gone."""
    return [path for path in sorted(base.glob(f"{_PREFIX}*")) if _is_scratch(path) and not is_held(path / _LOCK)]


def _is_scratch(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid() and (path / _LOCK).exists() and not path.is_symlink()
    except FileNotFoundError:  # its process has ended at this moment
        return False


def _default_base() -> Path:
    if os.access(SHARED_MEMORY, os.W_OK):
        return SHARED_MEMORY
    temporary = tempfile.gettempdir()
    return Path(temporary if len(temporary) <= LONGEST_BASE else "/tmp")
