"""Logs: files that processes write for weeks, bounded in size and free of secrets.

The controller writes its log itself. Children write into a pipe, from which a thread of the controller takes what they
print: so a secret is hidden before it is on disk, whatever printed it, and what is dropped is counted.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from areal_lit.files import naming
from areal_lit.secrets import LONGEST, RedactingFormatter, redact_text

READ_BYTES = 1 << 16
LINE_BYTES = 1 << 16
TAIL_BYTES = 1 << 14
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Logs:
    """How much is kept of what a run's processes print. Not slotted: jsonargparse reads a default instance's ``vars``.

    Args:
        max_mb: size in MiB at which a log of ``logs/`` is moved to ``NAME.log.1`` and begun anew.
        num_files: kept of each log, the one being written included; older output is dropped, and the log says how much.
    """

    max_mb: float = 8.0
    num_files: int = 3

    def __post_init__(self) -> None:
        if not self.max_mb > 0:
            raise ValueError(f"logs.max_mb must be > 0, got {self.max_mb}")
        if self.num_files < 2:
            raise ValueError(
                f"logs.num_files must be >= 2, got {self.num_files}: with a single one, a log that has just been begun "
                "anew would hold nothing of what came before"
            )

    def open(self, path: Path) -> BoundedFile:
        """The log of this name, which says at its beginning what was dropped."""
        return BoundedFile(path, max_bytes=int(self.max_mb * MIB), num_files=self.num_files, is_noticed=True)


DEFAULT_LOGS = Logs()


class BoundedFile:
    """A file to append to that moves aside when it is full: ``NAME``, ``NAME.1``, ... up to ``num_files``.

    Args:
        max_bytes: of one file; what is written at once stays in one piece, so a single longer piece may exceed it.
        num_files: kept, the one being written included.
        is_noticed: a line at the beginning of each file says how many bytes were dropped so far.
    """

    def __init__(self, path: Path, *, max_bytes: int, num_files: int, is_noticed: bool = False) -> None:
        self.path = path
        self.num_dropped = 0
        self._max_bytes = max_bytes
        self._num_files = num_files
        self._is_noticed = is_noticed
        self._file = self._open()
        self._size = self._file.tell()

    def _open(self) -> IO[bytes]:
        return self.path.open("ab", buffering=0)

    def write(self, data: bytes) -> None:
        """Append. Raises OSError naming the file."""
        with naming(self.path):
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
        self._file.close()
        oldest = numbered(self.path, self._num_files - 1)
        if oldest.exists():
            self.num_dropped += oldest.stat().st_size
            oldest.unlink()
        for number in range(self._num_files - 2, -1, -1):
            if (file := numbered(self.path, number)).exists():
                file.rename(numbered(self.path, number + 1))
        self._file = self._open()
        self._size = 0
        if self._is_noticed and self.num_dropped:
            notice = f"[{self.num_dropped} bytes of older output dropped; logs.max_mb and logs.num_files keep more]\n"
            self._size = self._file.write(notice.encode())


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


def terminal_handler() -> logging.Handler:
    """Shows warnings on stderr. A record with a traceback is left out: the exception reaches whoever called."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(RedactingFormatter("%(levelname)s: %(message)s"))
    handler.addFilter(lambda record: not record.exc_info)
    return handler


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
                self._take(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
        self._keep(self._finished_line())
        self._file.close()

    def _take(self, data: bytes) -> None:
        """Keep what is complete; of an unfinished line hold ``LINE_BYTES`` and count the rest."""
        first, newline, others = data.partition(b"\n")
        self._line += first
        self._num_cut += max(0, len(self._line) - LINE_BYTES)
        self._line = self._line[:LINE_BYTES]
        if newline:
            lines, newline, rest = others.rpartition(b"\n")
            self._keep(self._finished_line() + b"\n" + _clean(lines + newline))
            self._line, self._num_cut = rest, 0

    def _finished_line(self) -> bytes:
        if not self._num_cut:
            return _clean(self._line)
        # what is cut may be in the middle of a token, which is not recognised by its half
        kept = _clean(self._line)[:-LONGEST]
        return kept + f" [{self._num_cut + len(self._line) - len(kept)} bytes of this line dropped]".encode()

    def _keep(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        try:
            if data:
                self._file.write(data)
        except OSError:  # a full disk: the children go on, and what they print is counted
            self._file.num_dropped += len(data)


def _clean(data: bytes) -> bytes:
    return redact_text(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")
