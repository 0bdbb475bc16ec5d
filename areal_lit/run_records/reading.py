"""Reading what a run wrote: one error for all that is not there, cannot be read, or is something else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RecordsError(ValueError):
    """Records that were asked for are not there, or cannot be; the message says what would do."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise RecordsError, with path and way out, where a file cannot be read or holds no records of a run.

    FileNotFoundError is passed on: a run moves files aside while it is looked at.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RecordsError(
            f"{path} must be a file that can be read, and is not: {error.strerror}; move away what stands there, or "
            "allow yourself to read it"
        ) from error
    except ValueError as error:
        raise RecordsError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
