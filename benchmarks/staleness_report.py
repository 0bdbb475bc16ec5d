"""Table and plot of what ``staleness.py`` has measured so far.

    python benchmarks/staleness_report.py runs/staleness.jsonl [--plot FILE]

Area: the mean reward of the samples that each version drew, over all versions; rise: the same above the model that all
runs start from. Both over those of the same objective and seed without lag; a mean over seeds, the smallest and the
largest. Clipped and dropped: loss tokens whose ratio was clipped, and that M2PO or IcePop left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from areal_lit_loggers.plots.figures import COLOURS, smoothed

CLIPPED = ("train/clip_low", "train/clip_high")
DROPPED = ("train/m2_dropped", "train/rejected_low", "train/rejected_high")
WATCHED = (*CLIPPED, *DROPPED)
SMOOTHING_STEPS = 5.0
COLUMNS = (
    "lr", "objective", "lag", "realised", "seeds", "area", "of synchronous", "of its rise", "last tenth", "clipped",
    "dropped",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A run to measure.

    Args:
        lag: of all data; of asynchronous runs the most it may be.
    """

    objective: str
    lag: int
    seed: int
    lr: float
    steps: int
    is_asynchronous: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run showed.

    Args:
        rewards: mean reward of the samples of each version.
        lags: loss tokens by how many versions they were old, from step ``cell.lag`` on.
        watched: means over steps.
    """

    cell: Cell
    seconds: float
    rewards: Sequence[float]
    lags: Mapping[str, int]
    watched: Mapping[str, float]

    @property
    def area(self) -> float:
        return statistics.fmean(self.rewards)

    @property
    def last(self) -> float:
        """Mean reward of the last tenth."""
        return statistics.fmean(self.rewards[-max(1, len(self.rewards) // 10) :])

    @property
    def lag(self) -> float:
        return sum(int(lag) * tokens for lag, tokens in self.lags.items()) / sum(self.lags.values())


def read(path: Path) -> dict[Cell, Result]:
    """Results by cell; none where there is no file yet."""
    lines = path.read_text().splitlines() if path.exists() else []
    results = [Result(**{**values, "cell": Cell(**values["cell"])}) for values in map(json.loads, lines)]
    return {result.cell: result for result in results}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All seeds of a cell, and their areas over those of the same cells without lag."""

    cell: Cell
    results: Sequence[Result]
    shares: Sequence[float]
    rises: Sequence[float]

    @property
    def curves(self) -> str:
        """What it is drawn with."""
        return f"{self.cell.objective}, lr {self.cell.lr:g}"

    def mean(self, value: Callable[[Result], float]) -> float:
        return statistics.fmean(map(value, self.results))

    def watched(self, names: Sequence[str]) -> float:
        return self.mean(lambda result: sum(result.watched.get(name, 0.0) for name in names))


def rows_of(results: Iterable[Result]) -> list[Row]:
    """By objective and lag, asynchronous ones last; without those whose synchronous run is not there yet."""
    by_cell = {result.cell: result for result in results}
    first = statistics.fmean(result.rewards[0] for result in by_cell.values())  # all start from the same model
    pairs = defaultdict(list)
    for cell, result in by_cell.items():
        if synchronous := by_cell.get(replace(cell, lag=0, is_asynchronous=False)):
            pairs[replace(cell, seed=0)].append((result, synchronous))
    rows = [
        Row(
            cell=cell,
            results=[result for result, _ in members],
            shares=[result.area / synchronous.area for result, synchronous in members],
            rises=[(result.area - first) / (synchronous.area - first) for result, synchronous in members],
        )
        for cell, members in pairs.items()
    ]
    return sorted(rows, key=lambda row: (row.cell.is_asynchronous, row.cell.lr, row.cell.objective, row.cell.lag))


def spread(values: Sequence[float]) -> str:
    """Mean, smallest and largest, in per cent."""
    return f"{statistics.fmean(values):.1%} ({min(values):.1%} to {max(values):.1%})"


def table(rows: Iterable[Row]) -> str:
    """A line per row."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for row in rows:
        name = row.cell.objective + ", asynchronous" * row.cell.is_asynchronous
        lines.append(
            f"| {row.cell.lr:g} | {name} | {row.cell.lag} | {row.mean(lambda r: r.lag):.2f} | {len(row.results)} | "
            f"{row.mean(lambda r: r.area):.3f} | {spread(row.shares)} | {spread(row.rises)} | "
            f"{row.mean(lambda r: r.last):.3f} | {row.watched(CLIPPED):.1%} | {row.watched(DROPPED):.1%} |"
        )
    return "\n".join(lines)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Area against lag, each seed a point, and each objective's curves, the mean over seeds."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row.curves for row in rows))
    lags = sorted({row.cell.lag for row in rows})
    figure = Figure(figsize=(3.6 * (1 + len(names)), 3.4), layout="constrained")
    areas, *panels = figure.subplots(1, 1 + len(names))
    areas.set(title="area of synchronous", xlabel="versions old", xticks=range(len(lags)), xticklabels=lags)
    for name, panel, colour in zip(names, panels, COLOURS, strict=False):
        panel.set(title=name, xlabel="version", ylim=(0, 1))
        own = [row for row in rows if row.curves == name]
        places = [lags.index(row.cell.lag) for row in own]
        areas.plot(places, [statistics.fmean(row.shares) for row in own], color=colour, label=name)
        for place, row in zip(places, own, strict=True):
            areas.plot([place] * len(row.shares), row.shares, ".", color=colour)
            mean = [statistics.fmean(rewards) for rewards in zip(*(r.rewards for r in row.results), strict=True)]
            steps, shade = range(len(mean)), 0.8 - 0.8 * place / len(lags)
            panel.plot(steps, smoothed(steps, mean, SMOOTHING_STEPS), color=f"{shade:.2f}", label=str(row.cell.lag))
    areas.legend()
    panels[0].set_ylabel("sampled reward")
    panels[0].legend(title="versions old", ncols=2)
    figure.savefig(path, dpi=110)


def report(results: Iterable[Result], plot: Path | None) -> None:
    """Print the table; draw what is not asynchronous if a plot is wanted."""
    rows = rows_of(results)
    print(table(rows))
    if plot is not None:
        draw([row for row in rows if not row.cell.is_asynchronous], plot)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    report(read(options.cells).values(), options.plot)


if __name__ == "__main__":
    main()
