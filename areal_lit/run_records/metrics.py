"""metrics.csv row by row and as curves, from runs that go on, were cut off in the middle of a row, or were resumed."""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from areal_lit.measures import measure_of
from areal_lit.names import closest


class Row(NamedTuple):
    """What was reported of a step."""

    step: int
    cells: Mapping[str, str]
    """Text by metric, none of it empty."""

    def numbers(self) -> dict[str, float]:
        """The metrics that have a finite value."""
        values = {}
        for name, cell in self.cells.items():
            with suppress(ValueError):
                if math.isfinite(value := float(cell)):
                    values[name] = value
        return values


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a ``metrics.csv``; none if it does not exist. See ``parse_rows``."""
    if path.exists():
        with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
            yield from parse_rows(lines, name=str(path))


def parse_rows(lines: Iterable[str], *, name: str) -> Iterator[Row]:
    """The rows after a header that have all their cells, up to the end of the line, and follow those before them.

    Raises ValueError when the first column is not ``step``, or what follows is no text of cells.
    """
    try:
        yield from _rows(lines, name)
    except csv.Error as error:
        raise ValueError(f"{name} is no table of areal-lit: {error}; move it away") from error


def _rows(lines: Iterable[str], name: str) -> Iterator[Row]:
    cells = csv.reader(line for line in lines if line.endswith("\n"))
    header = next(cells, ["step"])
    first = "".join(header[:1])
    if first != "step":
        raise ValueError(
            f"{name}: the first column must be 'step', got {first[:40]!r}; it is no table of areal-lit, move it away"
        )
    last = -1
    for row in cells:
        if len(row) == len(header) and row[0].isdecimal() and int(row[0]) > last:
            last = int(row[0])
            yield Row(last, {name: cell for name, cell in zip(header[1:], row[1:], strict=True) if cell})


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A metric over the steps that reported it, finite values only."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]

    @property
    def final(self) -> float:
        """The last value."""
        return self.values[-1]

    @property
    def best(self) -> tuple[float, int] | None:
        """The best value and its first step; None where it is not known which way is better."""
        best = measure_of(self.name).best
        if best is None:
            return None
        value = best(self.values)
        return value, int(self.steps[list(self.values).index(value)])

    def mean(self, last: int) -> float:
        """Over the last so many reports, or all there are."""
        newest = self.values[-last:]
        return sum(newest) / len(newest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The metrics of a run by name, those that have a finite value, in the order in which they appeared."""

    curves: Mapping[str, Curve]

    @property
    def last_step(self) -> int:
        """The newest step of any metric; 0 without any."""
        return int(max((curve.steps[-1] for curve in self.curves.values()), default=0))

    def __getitem__(self, name: str) -> Curve:
        if name not in self.curves:
            raise KeyError(f"there is no metric {name!r}; {closest(name, self.curves)}")
        return self.curves[name]


def read_metrics(path: Path) -> Metrics:
    """The metrics of a ``metrics.csv``; none if it does not exist. Raises ValueError for another table."""
    points: dict[str, tuple[array[float], array[float]]] = {}
    for row in read_rows(path):
        for name, value in row.numbers().items():
            steps, values = points.setdefault(name, (array("d"), array("d")))
            steps.append(row.step)
            values.append(value)
    return Metrics(
        curves={name: Curve(name=name, steps=steps, values=values) for name, (steps, values) in points.items()}
    )
