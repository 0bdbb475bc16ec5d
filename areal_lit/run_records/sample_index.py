"""samples.jsonl by offset, so that only what is looked at is in memory.

A run that still writes, moves full files aside or was resumed from an earlier step may be followed with ``refresh``: a
file is only ever appended to, moved, deleted, or replaced by a shorter one.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from areal_lit.logs import rotated
from areal_lit.run_records.reading import RecordsError, reading
from areal_lit.run_records.records import Head, Sample


class SampleFile:
    """One file and how far it has been read. It stays open, for its path may be another file a moment later, until
    nobody holds an entry of it any more.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path):
            self.file = path.open("rb")
        self.inode = os.fstat(self.file.fileno()).st_ino
        self.num_unreadable = 0
        self._end = 0
        weakref.finalize(self, self.file.close)

    def new_entries(self) -> Iterator[Entry]:
        """Of every whole line that came since; one that is no record is counted."""
        self.file.seek(self._end)
        while (line := self.file.readline()).endswith(b"\n"):
            offset, self._end = self._end, self._end + len(line)
            try:
                yield Entry(self, offset, len(line), msgspec.json.decode(line, type=Head))
            except msgspec.DecodeError:
                self.num_unreadable += 1


class Entry(NamedTuple):
    """Where a sample is, and what is known of it without reading it. Any thread may read it, however late."""

    file: SampleFile
    offset: int
    size: int
    head: Head

    @property
    def group(self) -> tuple[int, str, int]:
        """What samples of one prompt in one step have in common."""
        return self.head.step, self.head.source, self.head.prompt_id

    def read(self) -> Sample:
        """The whole record. Raises RecordsError for one that has other fields than a sample."""
        line = os.pread(self.file.file.fileno(), self.size, self.offset)
        try:
            return msgspec.json.decode(line, type=Sample)
        except msgspec.DecodeError as error:
            raise RecordsError(
                f"{self.file.path}: the line at byte {self.offset} is no sample of areal-lit: {error}; delete that line"
            ) from error


class SampleIndex:
    """The samples of a run in the order in which they were written; none before the first ``refresh``.

    Args:
        path: of samples.jsonl; the files that it was moved aside to are found beside it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self._files: dict[int, SampleFile] = {}
        self._groups: dict[tuple[int, str, int], list[Entry]] = {}

    @property
    def num_unreadable(self) -> int:
        """Lines that are no records."""
        return sum(file.num_unreadable for file in self._files.values())

    def require_readable(self) -> None:
        """Raise RecordsError unless every file that is there can be read."""
        self._open()

    def refresh(self) -> bool:
        """Read what was written since; whether anything changed. An unfinished last line is left for the next time.

        Entries of files that were replaced or deleted are dropped; who holds one can still read it.
        """
        present = self._open()
        gone = [self._files.pop(inode) for inode in self._files.keys() - present.keys()]
        if gone:
            self._drop(gone)
        before = len(self.entries)
        for inode, opened in present.items():
            for entry in self._files.setdefault(inode, opened).new_entries():
                self.entries.append(entry)
                self._groups.setdefault(entry.group, []).append(entry)
        return bool(gone) or len(self.entries) > before

    def _open(self) -> dict[int, SampleFile]:
        """The files that are there by inode, the oldest first, opened anew."""
        present = {}
        for path in rotated(self.path):
            with suppress(FileNotFoundError):  # moved aside this very moment; the next time it is found
                opened = SampleFile(path)
                present[opened.inode] = opened
        return present

    def _drop(self, files: Sequence[SampleFile]) -> None:
        """Replaces what other threads may look at, and changes none of it."""
        self.entries = [entry for entry in self.entries if entry.file not in files]
        groups: dict[tuple[int, str, int], list[Entry]] = {}
        for entry in self.entries:
            groups.setdefault(entry.group, []).append(entry)
        self._groups = groups

    def group(self, entry: Entry) -> list[Entry]:
        """All logged samples of the same prompt in the same step, in sample order; of a dropped one itself alone."""
        found = self._groups.get(entry.group, [])
        return sorted(found, key=lambda e: e.head.sample) if entry in found else [entry]
