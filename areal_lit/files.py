"""Errors of writing that say which file it was, and what to do about a full disk."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def naming(path: Path | str, *, way_out: str = "free space there, then go on with --resume auto") -> Iterator[None]:
    """Have an OSError raised within name this file: writing and closing do not by themselves.

    Args:
        way_out: added where the disk is full or a quota is reached.
    """
    try:
        yield
    except OSError as error:
        advice = f"; {way_out}" if error.errno in FULL else ""
        raise OSError(error.errno, f"{error.strerror}{advice}", str(path)) from error
