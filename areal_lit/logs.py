"""Logs: files that processes write for weeks, bounded in size and free of secrets.

The controller writes its log itself. Children write into a pipe, from which a thread of the controller takes what they
print: so a secret is hidden before it is on disk, whatever printed it, and what is dropped is counted.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, final

from areal_lit.files import writing
from areal_lit.secrets import LONGEST, RedactingFlow, RedactingFormatter

READ_BYTES = 1 << 16
LINE_BYTES = 1 << 16
TAIL_BYTES = 1 << 14
NOTICE_CHARACTERS = 200
MIB = 1 << 20
NOTICE = "[{dropped_bytes} bytes of older output dropped; logs.max_mib and logs.num_files keep more]\n"


@final
@dataclass(frozen=True, kw_only=True)
class Logs:
    """How much is kept of what a run's processes print.

    Args:
        max_mib: size in MiB at which a log of ``logs/`` is moved to ``NAME.log.1`` and begun anew.
        num_files: kept of each log, the one being written included; older output is dropped, and the log says how much.
    """

    max_mib: float = 8.0
    num_files: int = 3

    def __post_init__(self) -> None:
        if not self.max_mib > 0:
            raise ValueError(f"logs.max_mib must be > 0, got {self.max_mib}")
        if self.num_files < 2:
            raise ValueError(
                f"logs.num_files must be >= 2, got {self.num_files}: with a single one, a log that has just been begun "
                "anew would hold nothing of what came before"
            )

    def open(self, path: Path) -> BoundedFile:
        """The log of this name, which says at its beginning what was dropped."""
        return BoundedFile(path, max_bytes=int(self.max_mib * MIB), num_files=self.num_files, notice=NOTICE)


class BoundedFile:
    """A file to append to that moves aside when it is full: ``NAME``, ``NAME.1``, ... up to ``num_files``.

    Args:
        max_bytes: of one file; what is written at once stays in one piece, so a single longer piece may exceed it.
        num_files: kept, the one being written included.
        notice: a line with ``{dropped_bytes}`` that begins each file once something was dropped; empty for none.
    """

    def __init__(self, path: Path, *, max_bytes: int, num_files: int, notice: str = "") -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._num_files = num_files
        self._notice = notice
        self._file = self._open()
        self.dropped_bytes = self._noticed()
        """With a notice those dropped before this file was opened are counted too."""
        self._size = self._file.tell()

    def _open(self) -> IO[bytes]:
        return self.path.open("ab", buffering=0)

    def write(self, data: bytes) -> None:
        """Append. Raises OSError naming the file."""
        with writing(self.path):
            if self._size and self._size + len(data) > self._max_bytes:
                self._rotate()
            rest = memoryview(data)
            while rest:  # a disk that fills up takes a part
                rest = rest[self._file.write(rest) :]
        self._size += len(data)

    def close(self) -> None:
        """Close; idempotent."""
        self._file.close()

    def _rotate(self) -> None:
        """Begin a new file; if that fails, what is open stays open, and the next try goes on from where it failed."""
        places = [numbered(self.path, number) for number in range(self._num_files)]
        gap = next((number for number, place in enumerate(places) if not place.exists()), self._num_files - 1)
        if places[gap].exists():
            dropped = places[gap].stat().st_size
            places[gap].unlink()
            self.dropped_bytes += dropped
        for number in range(gap, 0, -1):
            places[number - 1].rename(places[number])
        file = self._open()
        self._file.close()
        self._file, self._size = file, 0
        if self._notice and self.dropped_bytes:
            self._size = self._file.write(self._notice.format(dropped_bytes=self.dropped_bytes).encode())

    def _noticed(self) -> int:
        if not self._notice:
            return 0
        pattern = re.escape(self._notice).replace(re.escape("{dropped_bytes}"), "([0-9]+)")
        with self.path.open(errors="replace") as file:
            noticed = re.match(pattern, file.readline(NOTICE_CHARACTERS))
        return int(noticed[1]) if noticed else 0


def numbered(path: Path, number: int) -> Path:
    """The file that was moved aside ``number`` times; 0 is the one being written."""
    return path.with_name(f"{path.name}.{number}") if number else path


def rotated(path: Path) -> list[Path]:
    """All files of a bounded file, the oldest first."""
    aside = [file for file in path.parent.glob(f"{path.name}.*") if file.suffix[1:].isdecimal()]
    files = sorted(aside, key=lambda file: int(file.suffix[1:]), reverse=True)
    return [*files, path] if path.exists() else files


class LogHandler(logging.Handler):
    """Takes log records to a bounded file; once that cannot be written, says so on stderr and drops them."""

    def __init__(self, file: BoundedFile) -> None:
        super().__init__()
        self._file = file
        self._is_lost = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._file.write(f"{self.format(record)}\n".encode(errors="backslashreplace"))
        except OSError as error:
            if not self._is_lost and sys.stderr is not None:
                print(f"the log is not complete: {error}", file=sys.stderr)
            self._is_lost = True
        except Exception:  # noqa: BLE001 - as logging has it: a message that cannot be kept must not end who sent it
            self.handleError(record)

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def shown_on_terminal() -> Iterator[None]:
    """Show the package's warnings on stderr meanwhile, unless somebody set logging up.

    A record with a traceback is left out: the exception reaches whoever called.
    """
    package_logger = logging.getLogger("areal_lit")
    if package_logger.hasHandlers():
        yield
        return
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(RedactingFormatter("%(levelname)s: %(message)s"))
    handler.addFilter(lambda record: not record.exc_info)
    package_logger.addHandler(handler)
    try:
        yield
    finally:
        package_logger.removeHandler(handler)


@contextmanager
def logged_to(file: BoundedFile) -> Iterator[None]:
    """Take the package's log to a file meanwhile, from INFO on; other handlers are told what they would be without."""
    package_logger = logging.getLogger("areal_lit")
    level, is_propagated, told = package_logger.level, package_logger.propagate, package_logger.getEffectiveLevel()
    handlers: list[logging.Handler] = [LogHandler(file)]
    handlers[0].setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    if is_propagated:
        handlers.append(_ToRoot(told))
    for handler in handlers:
        package_logger.addHandler(handler)
    package_logger.propagate = False
    package_logger.setLevel(min(told, logging.INFO))
    try:
        yield
    finally:
        package_logger.propagate = is_propagated
        package_logger.setLevel(level)
        for handler in handlers:
            package_logger.removeHandler(handler)
            handler.close()


class _ToRoot(logging.Handler):
    """Has the root logger's handlers take a record."""

    def emit(self, record: logging.LogRecord) -> None:
        root = logging.getLogger()
        if root.handlers:
            root.callHandlers(record)


class LogPipe:
    """Where child processes print to: ``writer`` is their end, a bounded file without secrets the other.

    A line is in the file as soon as it ends; a carriage return ends one too, so a progress bar is a line per state.

    Args:
        file: written by this object's thread alone, and closed by it.
        pipe: both ends of one that children print into already; a new one by default.
    """

    def __init__(self, file: BoundedFile, pipe: tuple[int, int] | None = None) -> None:
        read, write = pipe or os.pipe()
        self.path = file.path
        self.writer = open(write, "wb", buffering=0)  # noqa: SIM115 - closed by close_writer
        self._file = file
        self._line = b""
        self._num_cut = 0
        self._flow = RedactingFlow()
        self._tail = b""
        self._thread = threading.Thread(target=self._run, args=(read,), name=f"log-{file.path.stem}", daemon=True)
        self._thread.start()

    def close_writer(self) -> None:
        """Close this process's copy of the children's end; once theirs are closed too the log is complete."""
        self.writer.close()

    def join(self, timeout_s: float) -> None:
        """Wait until all that the children printed is in the file, or a process that they left keeps the pipe open."""
        self._thread.join(timeout_s)

    def tail(self) -> str:
        """The newest ``TAIL_BYTES`` that were printed."""
        return self._tail.decode(errors="replace")

    def _run(self, read: int) -> None:
        with open(read, "rb", buffering=0) as pipe:
            while data := pipe.read(READ_BYTES):
                with self._survived(len(data)):
                    self._take(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
        with self._survived(len(self._line)):
            self._finish(b"", b"")
        self._file.close()

    @contextmanager
    def _survived(self, num_bytes: int) -> Iterator[None]:
        try:
            yield
        except Exception:  # noqa: BLE001 - a full disk or whatever else: the children go on, what they print is counted
            self._file.dropped_bytes += num_bytes

    def _take(self, data: bytes) -> None:
        """Keep what is complete; of an unfinished line hold ``LINE_BYTES`` and count the rest."""
        first, newline, others = data.partition(b"\n")
        self._line += first
        self._num_cut += max(0, len(self._line) - LINE_BYTES)
        self._line = self._line[:LINE_BYTES]
        if newline:
            lines, last_newline, rest = others.rpartition(b"\n")
            self._finish(newline + lines + last_newline, rest)

    def _finish(self, lines: bytes, rest: bytes) -> None:
        """Keep the line that is held and whole ones after it; hold the rest."""
        line, num_cut = self._line, self._num_cut
        self._line, self._num_cut = rest, 0
        if num_cut:
            # what is cut may be in the middle of a token, which is not recognised by its half
            kept = self._clean(line)[:-LONGEST]
            line = kept + f" [{num_cut + len(line) - len(kept)} bytes of this line dropped]".encode()
            data = line + self._clean(lines)
        else:
            data = self._clean(line + lines)
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        if data:
            self._file.write(data)

    def _clean(self, data: bytes) -> bytes:
        return self._flow.redact(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")
