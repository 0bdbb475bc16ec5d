"""Locks: files held by processes that live.

A lock, not a process id, tells who lives: machines and containers that share a file system see each other's.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from typing import IO

RUN_LOCK = ".lock"
"""In a run's directory, held while the run goes on."""


def hold(path: Path) -> IO[str]:
    """Hold a lock until the returned file is closed or this process ends; the file says who holds it.

    Raises BlockingIOError when it is held already; its ``strerror`` is "in use by process 17 on host".
    """
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        with file:
            file.seek(0)
            holder = file.read() or "another process"
        raise BlockingIOError(error.errno, f"in use by {holder}", str(path)) from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    return file


def is_held(path: Path) -> bool:
    """Whether a process holds a lock; yes where that cannot be told."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # held, or another user's
        return True
    return False
