"""JSON Lines files: one JSON object a line, plain or gzipped."""

from __future__ import annotations

import glob
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_lit.contracts import Preview, Source
from areal_lit.text import TextCodec
from areal_lit_data.columns import Row
from areal_lit_data.rows import RowData

PREVIEW_BYTES = 4 * 2**20
"""Parsing them takes under 0.1 s."""


class Jsonl(RowData):
    """Rows of JSON Lines files, with columns named in the recipe.

    Args:
        files: paths or glob patterns, read in this order (matches of a pattern by name); ``.gz`` is unpacked.
        eval_files: the same per evaluation set.
        name: of the training source, in metrics.
    """

    def __init__(
        self,
        *,
        files: Sequence[str],
        eval_files: Mapping[str, Sequence[str]] | None = None,
        name: str = "jsonl",
        **rows: Any,
    ) -> None:
        super().__init__(**rows)
        if isinstance(files, str) or any(isinstance(patterns, str) for patterns in (eval_files or {}).values()):
            raise ValueError(
                "files and each entry of eval_files are lists of paths, got a single string; put it in brackets"
            )
        if empty := [f"eval_files.{name}" for name, patterns in (eval_files or {}).items() if not patterns]:
            raise ValueError(f"{', '.join(empty)} must name at least one file, got []; leave the set out instead")
        if not files and not eval_files:
            raise ValueError("files must name at least one file, got [], and there are no eval_files: nothing is read")
        self.files = files
        self.eval_files = eval_files or {}
        self.name = name

    def evaluation_names(self) -> Sequence[str]:
        return list(self.eval_files)

    def setup(self, codec: TextCodec) -> None:
        if self.files:
            self._train = {self.name: self._load(self.files, codec, self.max_examples)}
        self._evaluation = {
            name: self._load(files, codec, self.max_eval_examples) for name, files in self.eval_files.items()
        }

    def preview(self) -> Mapping[str, Preview]:
        """From the first ``PREVIEW_BYTES`` of the files."""
        sources = {f"evaluation {name}": files for name, files in self.eval_files.items()}
        if self.files:
            sources[self.name] = self.files
        return {
            name: self._preview(read_rows(files, self.example, PREVIEW_BYTES), name=", ".join(files))
            for name, files in sources.items()
        }

    def _load(self, patterns: Sequence[str], codec: TextCodec, limit: int | None) -> Source:
        return self._source(read_rows(patterns, self.example), codec, name=", ".join(patterns), limit=limit)


def read_rows(
    patterns: Sequence[str], check: Callable[[Row], object] | None = None, num_bytes: int | None = None
) -> list[Row]:
    """All rows of the files in order. Raises ValueError with file and line for the first bad one.

    Args:
        check: called with each row; a ValueError of it is told with the row's place.
        num_bytes: read only the lines that begin within so many, over all files.
    """
    rows: list[Row] = []
    num_read = 0
    for path in find_files(patterns):
        if num_bytes is not None and num_read >= num_bytes:
            break
        try:
            text = _text(path, None if num_bytes is None else num_bytes - num_read)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}); convert the file") from error
        num_read += path.stat().st_size
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"each line must be a JSON object, got {type(row).__name__}")
                if check is not None:
                    check(row)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
            rows.append(row)
    return rows


def _text(path: Path, num_bytes: int | None) -> str:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return (file.read(num_bytes) + file.readline()).decode("utf-8")


def find_files(patterns: Sequence[str]) -> list[Path]:
    """Files of all patterns in order, each once. Raises ValueError for a pattern that matches none."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        expanded = str(Path(pattern).expanduser())
        matches = (
            [Path(expanded)] if Path(expanded).is_file() else map(Path, sorted(glob.glob(expanded, recursive=True)))
        )
        files = [path for path in matches if path.is_file()]
        if not files:
            raise ValueError(f"no file matches {pattern!r}, looked in {Path.cwd()}")
        found.update(dict.fromkeys(files))
    return list(found)
