"""samples.jsonl as records: the files are indexed by offset, so only what is looked at is in memory.

A run that still writes, moves full files aside or was resumed from an earlier step may be followed with ``refresh``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from areal_lit.logs import rotated


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of each token that the model drew, in order.

    Args:
        ids: of the model's vocabulary.
        logprobs: behaviour log-probs; null where not finite.
        versions: runs of equal ones, ``[version, how many]``.
    """

    ids: list[int]
    logprobs: list[float | None]
    versions: list[tuple[int, int]]

    @property
    def version_of_each(self) -> list[int]:
        """The version of each token."""
        return [version for version, num in self.versions for _ in range(num)]


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What lists, filters and orders need of a sample. Fields that a record lacks have their defaults."""

    step: int
    source: str = ""
    prompt_id: int = 0
    sample: int = 0
    reward: float | None = None
    versions: list[int] = msgspec.field(default_factory=list)
    stop_reason: str = ""
    num_tokens: int = 0
    num_generated: int = 0

    @property
    def staleness(self) -> int | None:
        """Steps between the oldest weights that drew a token and those that were trained with it."""
        return self.step - 1 - self.versions[0] if self.versions else None


class Sample(Head, frozen=True, kw_only=True):
    """A record as ``Samples`` writes it: a trajectory that was trained on."""

    prompt: str | list[dict[str, str]] = ""
    completion: str = ""
    unscored: str = ""
    parts: dict[str, float | None] = msgspec.field(default_factory=dict)
    tokens: Tokens | None = None

    @property
    def prompt_text(self) -> str:
        """The prompt as plain text; of chat messages each under its role."""
        if isinstance(self.prompt, str):
            return self.prompt
        return "\n\n".join(f"{message.get('role', '')}: {message.get('content', '')}" for message in self.prompt)


class Entry(NamedTuple):
    """Where a sample is, and what is known of it without reading it."""

    file: IO[bytes]
    offset: int
    size: int
    head: Head


class _File:
    """One file and how far it has been read. It stays open: a path may be another file a moment later."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb")
        self.inode = os.fstat(self.file.fileno()).st_ino
        self.end = 0
        self.last = b""

    def is_cut(self) -> bool:
        """Whether what was read of it is not there any more: a resumed run cut it."""
        if os.fstat(self.file.fileno()).st_size < self.end:
            return True
        self.file.seek(self.end - len(self.last))
        return self.file.read(len(self.last)) != self.last

    def new_entries(self) -> Iterator[tuple[Entry | None, bytes]]:
        """Every whole line that came since, and its entry unless it is no record."""
        self.file.seek(self.end)
        while (line := self.file.readline()).endswith(b"\n"):
            offset, self.end, self.last = self.end, self.end + len(line), line
            try:
                yield Entry(self.file, offset, len(line), _head(line)), line
            except msgspec.DecodeError:
                yield None, line


class SampleIndex:
    """The samples of a run in the order in which they were written.

    Args:
        path: of samples.jsonl; the files that it was moved aside to are found beside it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self.num_unreadable = 0
        self._files: dict[int, _File] = {}
        self._retired: list[_File] = []

    def refresh(self) -> bool:
        """Read what was written since; whether anything changed. An unfinished last line is left for the next time.

        Entries that are dropped, with their file or because a resumed run cut it, can be read until the next call.
        """
        _close(self._retired)
        present = self._open_new()
        gone = self._files.keys() - present
        if any(self._files[inode].is_cut() for inode in present):
            gone, self.num_unreadable = set(self._files), 0
        if gone:
            dropped = {id(self._files[inode].file) for inode in gone}
            self.entries = [entry for entry in self.entries if id(entry.file) not in dropped]
            self._retired = [self._files.pop(inode) for inode in gone]
        before = len(self.entries)
        for inode in self._open_new():
            for entry, _ in self._files[inode].new_entries():
                if entry is None:
                    self.num_unreadable += 1
                else:
                    self.entries.append(entry)
        return bool(gone) or len(self.entries) > before

    def _open_new(self) -> list[int]:
        """Open the files that are not yet; the inodes of all that are there, the oldest first."""
        present = []
        for path in rotated(self.path):
            try:
                opened = _File(path)
            except FileNotFoundError:  # moved aside this very moment; the next time it is found
                continue
            present.append(opened.inode)
            if opened.inode in self._files:
                opened.file.close()
            else:
                self._files[opened.inode] = opened
        return present

    def read(self, entry: Entry) -> Sample:
        """The whole record."""
        return msgspec.json.decode(_bytes(entry), type=Sample)

    def group(self, entry: Entry) -> list[Entry]:
        """All logged samples of the same prompt in the same step, in sample order."""
        if entry not in self.entries:  # dropped by now
            return [entry]
        wanted = (entry.head.step, entry.head.prompt_id, entry.head.source)
        place = self.entries.index(entry)
        near = self.entries[max(0, place - 4096) : place + 4096]
        same = [e for e in near if (e.head.step, e.head.prompt_id, e.head.source) == wanted]
        return sorted(same, key=lambda e: e.head.sample)

    def close(self) -> None:
        """Close all files."""
        _close([*self._files.values(), *self._retired])
        self._files, self._retired, self.entries = {}, [], []


def _close(files: Iterable[_File]) -> None:
    for file in files:
        file.file.close()


def cut_samples(path: Path, step: int) -> None:
    """Leave the samples up to a step, as a resumed run needs; 0 leaves none. What follows a torn line goes too."""
    is_over = step <= 0
    for file in rotated(path):
        end = 0 if is_over else _end_of(file, step)
        is_over = end < file.stat().st_size
        if end:
            os.truncate(file, end)
        else:
            file.unlink()


def _end_of(path: Path, step: int) -> int:
    """The offset behind the last whole line up to a step."""
    reader = _File(path)
    with reader.file:
        for entry, line in reader.new_entries():
            if entry is not None and entry.head.step > step:
                return reader.end - len(line)
    return reader.end


def _head(line: bytes) -> Head:
    return msgspec.json.decode(line, type=Head)


def _bytes(entry: Entry) -> bytes:
    """Without moving the file's position, so from any thread."""
    return os.pread(entry.file.fileno(), entry.size, entry.offset)
