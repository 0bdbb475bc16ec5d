"""metrics.csv as curves, from runs that go on, were cut off in the middle of a row, or were resumed."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from areal_lit.names import closest

_LOWER_IS_BETTER = ("loss", "kl", "seconds", "unscored", "dropped", "failed", "truncated", "mismatch", "grad_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A metric over the steps that reported it, finite values only."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]

    @property
    def is_lower_better(self) -> bool:
        """Whether its best value is the lowest: losses, divergences, times and what counts mishaps."""
        phase, _, name = self.name.partition("/")
        return phase == "time" or any(word in name.split("/")[-1] for word in _LOWER_IS_BETTER)

    @property
    def final(self) -> float:
        """The last value."""
        return self.values[-1]

    @property
    def best(self) -> tuple[float, int]:
        """The best value and its first step."""
        value = (min if self.is_lower_better else max)(self.values)
        return value, int(self.steps[list(self.values).index(value)])

    def mean(self, last: int) -> float:
        """Over the last so many reports, or all there are."""
        newest = self.values[-last:]
        return sum(newest) / len(newest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The metrics of a run by name, those that have a finite value, in the order of the file's columns."""

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
    """The metrics of a ``metrics.csv``; none if it does not exist. Rows that are torn are left out.

    Raises ValueError when the first column is not ``step``.
    """
    if not path.exists():
        return Metrics(curves={})
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        lines = csv.reader(line for line in file if line.endswith("\n"))
        names = next(lines, ["step"])
        if names[0] != "step":
            raise ValueError(f"{path}: the first column must be 'step', got {names[0]!r}; it is no areal-lit table")
        columns = [(array("d"), array("d")) for _ in names]
        for step, row in _whole(lines, len(names)):
            for (steps, values), value in zip(columns, row, strict=True):
                if value is not None:
                    steps.append(step)
                    values.append(value)
    curves = {
        name: Curve(name=name, steps=steps, values=values)
        for name, (steps, values) in zip(names[1:], columns[1:], strict=True)
        if values
    }
    return Metrics(curves=curves)


def _whole(lines: Iterator[list[str]], width: int) -> Iterator[tuple[float, list[float | None]]]:
    """Step and finite numbers of each row that has all its cells and follows those before it."""
    last = -1.0
    for line in lines:
        numbers = [_number(cell) for cell in line]
        step = numbers[0] if numbers else None
        if len(numbers) == width and step is not None and step > last:
            last = step
            yield step, numbers


def _number(cell: str) -> float | None:
    """None for what is empty, not finite or no number."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None
