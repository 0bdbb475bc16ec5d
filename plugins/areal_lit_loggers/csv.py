"""metrics.csv: a row per step, a column per metric."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from areal_lit.contracts import RunLogger
from areal_lit.files import replacing, writing
from areal_lit.run_records import Row, read_rows


class Csv(RunLogger):
    """Writes ``metrics.csv``: column ``step`` first, then metrics in order of appearance.

    A row is on disk when the step ends. Numbers reported later for the same step (an evaluation) join its row. When a
    metric appears for the first time the file is rewritten and replaced in one move; earlier rows have the cell empty.
    All rows are kept: about 10 bytes per metric and step.

    Args:
        file_name: in the run's directory.
    """

    def __init__(self, *, file_name: str = "metrics.csv") -> None:
        self.file_name = file_name
        self._file: IO[bytes] | None = None
        self._columns: list[str] = ["step"]
        self._last: dict[str, float] = {}
        self._last_offset = 0

    @property
    def writes(self) -> str:
        return self.file_name

    def setup(self, run_dir: Path, config: Mapping[str, Any], step: int) -> None:
        self._path = run_dir / self.file_name
        rows = self._rows(until=step) if step > 0 else []
        self._columns = ["step", *dict.fromkeys(name for row in rows for name in row.cells)]
        resumed = rows.pop() if rows and rows[-1].step == step else None
        self._rewrite(rows)
        if resumed is not None:
            self.metrics(step, {name: _number(cell) for name, cell in resumed.cells.items()})

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        if self._file is None:
            raise RuntimeError("the csv logger is closed or was not set up; call setup(run_dir, config, step) first")
        merge = self._last.get("step") == step
        self._last = {**(self._last if merge else {}), "step": step, **values}
        if not merge:
            self._last_offset = self._file.seek(0, os.SEEK_END)
        if new := [name for name in values if name not in self._columns]:
            self._columns += new
            self._rewrite(self._rows(until=step - 1 if merge else step))
        with writing(self._path):
            self._file.seek(self._last_offset)
            self._file.write(_encode([[_cell(self._last.get(name)) for name in self._columns]]))
            self._file.truncate()
            self._file.flush()

    def close(self, status: str) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rows(self, *, until: int) -> list[Row]:
        return [row for row in read_rows(self._path) if row.step <= until]

    def _rewrite(self, rows: Sequence[Row]) -> None:
        """Replace the file by one with the present columns and these rows; go on at its end."""
        if self._file is not None:
            self._file.close()
        names = self._columns[1:]
        cells = [[str(row.step), *(row.cells.get(name, "") for name in names)] for row in rows]
        with replacing(self._path) as partial:
            partial.write_bytes(_encode([self._columns, *cells]))
        self._file = self._path.open("r+b")
        self._last_offset = self._file.seek(0, os.SEEK_END)


def _cell(value: float | None) -> str:
    """Shortest text that reads back to the same number."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, int) else repr(float(value))


def _number(cell: str) -> float:
    return int(cell) if cell.lstrip("-").isdecimal() else float(cell)


def _encode(rows: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
