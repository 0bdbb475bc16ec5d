"""Files that are written: errors name them, and what to do about a full disk; no reader sees half of one."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class WriteError(OSError):
    """A file could not be written; the message names it and, where the disk is full, the room and the way out."""


@contextmanager
def writing(path: Path | str, *, needed_bytes: int | None = None, way_out: str = "free space there") -> Iterator[None]:
    """Turn an OSError raised within into a WriteError that names this file: writing and closing do not by themselves.

    Args:
        path: a file, or a directory in which files are written.
        needed_bytes: what is to be written, where that is known; told with what was free, where the disk is full.
        way_out: added where the disk is full or a quota is reached.
    """
    room = "" if needed_bytes is None else f" ({_size(needed_bytes)} are needed, {_size(_free_bytes(path))} were free)"
    try:
        yield
    except BrokenPipeError:
        raise  # its reader has gone, which is for the writer to judge
    except OSError as error:
        advice = f"{room}; {way_out}" if error.errno in FULL else ""
        # the path within the message, which would put its file name last
        raise WriteError(error.errno or errno.EIO, f"{error.strerror or error}: {str(path)!r}{advice}") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside ``path`` to write, which takes its place at the end. Raises WriteError."""
    partial = path.with_name(f".{path.name}.partial")
    with writing(path):
        yield partial
        partial.replace(path)


def _free_bytes(path: Path | str) -> int:
    path = Path(path)
    return shutil.disk_usage(path if path.is_dir() else path.parent).free


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
