"""``areal-lit compare``: what runs differ in, and what came of it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_lit.names import closest
from areal_lit.run_records import Curve, Metrics, RecordsError, RunRecords, differences, find_runs

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PREFERRED = ("rollout/reward", "eval/*/reward", "train/loss", "*")
"""Which curve is drawn unless told: the first of these that the runs share."""

ORDER = ("eval/", "rollout/reward", "rollout/", "reward/", "train/")
"""Which metrics are listed first; the rest follows."""

WIDTH_OF_FILES = 10_000
"""Characters: where no eye has to follow, no line is broken."""

Shared = Mapping[str, Sequence[Curve]]
"""One curve per run, by metric."""


def run(arguments: Sequence[str]) -> int:
    """0; runs that cannot be found are the caller's to report."""
    parsed = _parser().parse_args(list(arguments))
    if parsed.last < 1:
        raise RecordsError(f"--last must be >= 1, got {parsed.last}; it is over how many values the mean goes")
    runs = find_runs(parsed.runs)
    if len(runs) < 2:
        raise RecordsError(f"one run is nothing to compare: {runs[0].path}; name another, or quote a pattern: 'runs/*'")
    metrics = [each.metrics() for each in runs]
    shared = _shared(metrics)
    drawn = {name: shared[name] for name in _drawn(shared, parsed.curve)}
    listed = {name: curves for name, curves in shared.items() if _matches(name, parsed.metric)}
    if parsed.png:
        from areal_lit.cli.curves import write_png

        written = write_png(parsed.png, drawn, labels(runs))
        print(f"drawn: {written}", file=sys.stderr)
    if parsed.json:
        print(json.dumps(_as_json(runs, metrics, listed, parsed.last), indent=2))
        return 0
    _print(runs, metrics, listed, drawn, parsed.last)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="areal-lit compare", description="Show what runs differ in, their metrics side by side, and curves."
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="directories of runs, or patterns: 'runs/lr-*'")
    parser.add_argument("--metric", action="append", metavar="PATTERN", help="only metrics like this: 'eval/*'")
    parser.add_argument("--curve", action="append", metavar="PATTERN", help="draw these (default: the reward)")
    parser.add_argument("--last", type=int, default=10, metavar="K", help="mean over the last K values (default: 10)")
    parser.add_argument("--png", type=Path, metavar="FILE", help="also draw the curves into a picture")
    parser.add_argument("--json", action="store_true", help="the same as JSON, without curves")
    return parser


def labels(runs: Sequence[RunRecords]) -> list[str]:
    """What tells the runs apart in a table: their names, or their paths where two share one."""
    names = [run.name for run in runs]
    return [run.name if names.count(run.name) == 1 else str(run.path) for run in runs]


def _shared(metrics: Sequence[Metrics]) -> dict[str, list[Curve]]:
    """The metrics that every run has a value of."""
    names = [name for name in metrics[0].curves if all(name in each.curves for each in metrics)]
    return {name: [each.curves[name] for each in metrics] for name in names}


def _matches(name: str, patterns: Sequence[str] | None) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def _drawn(shared: Shared, patterns: Sequence[str] | None) -> list[str]:
    """The curves to draw. Raises RecordsError for a pattern that no shared metric matches."""
    for pattern in patterns or ():
        if not any(fnmatchcase(name, pattern) for name in shared):
            raise RecordsError(f"--curve {pattern}: the runs share no such metric; {closest(pattern, shared)}")
    if patterns:
        return [name for name in shared if _matches(name, patterns)]
    return [name for like in PREFERRED for name in shared if fnmatchcase(name, like)][:1]


def _print(runs: Sequence[RunRecords], metrics: Sequence[Metrics], listed: Shared, drawn: Shared, last: int) -> None:
    from rich.console import Console

    from areal_lit.cli.curves import draw

    console = Console(highlight=False, markup=False, emoji=False)
    width = console.width
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH_OF_FILES
    names = labels(runs)
    console.print(_runs_table(runs, metrics, names))
    _print_metrics(console, listed, names, last)
    _print_differences(console, differences(runs), names)
    for name, curves in drawn.items():
        console.print()
        console.print(draw(name, curves, names, width=width, with_colors=console.is_terminal))
    _print_unshared(console, metrics, names)


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        is_text = column in ("run", "metric", "key", "value", "runs", "path")
        table.add_column(column, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    return table


def _runs_table(runs: Sequence[RunRecords], metrics: Sequence[Metrics], names: Sequence[str]) -> Table:
    table = _table("run", "steps", "path")
    for each, its, name in zip(runs, metrics, names, strict=True):
        table.add_row(name, str(its.last_step), str(each.path))
    return table


def _print_differences(console: Console, found: Mapping[str, Sequence[str]], names: Sequence[str]) -> None:
    if not found:
        console.print("\nno difference in recipes or versions")
        return
    table = _table("key", "value", "runs")
    for key, values in found.items():
        for number, value in enumerate(dict.fromkeys(values)):
            having = [name for name, its in zip(names, values, strict=True) if its == value]
            table.add_row("" if number else key.replace(".init_args", ""), value, ", ".join(having))
    console.print()
    console.print(table)


def _print_metrics(console: Console, listed: Shared, names: Sequence[str], last: int) -> None:
    telling = {name: listed[name] for name in sorted(listed, key=_rank) if _has_non_zero(listed[name])}
    if telling:
        console.print()
        console.print(_metrics_table(telling, names, last))
    if num_zero := len(listed) - len(telling):
        console.print(f"\n{num_zero} metric{' is' if num_zero == 1 else 's are'} 0 in every run; --json lists all")
    if not listed:
        console.print("\nthe runs share no such metric that has a value")


def _rank(metric: str) -> int:
    return next((rank for rank, prefix in enumerate(ORDER) if metric.startswith(prefix)), len(ORDER))


def _has_non_zero(curves: Sequence[Curve]) -> bool:
    return any(any(curve.values) for curve in curves)


def _metrics_table(shared: Shared, names: Sequence[str], last: int) -> Table:
    table = _table("metric", "run", "final", f"mean of {last}", "best", "at step")
    for metric, curves in shared.items():
        for number, (name, curve) in enumerate(zip(names, curves, strict=True)):
            best, step = ("-", "-") if curve.best is None else (_short(curve.best[0]), str(curve.best[1]))
            table.add_row("" if number else metric, name, _short(curve.final), _short(curve.mean(last)), best, step)
    return table


def _print_unshared(console: Console, metrics: Sequence[Metrics], names: Sequence[str]) -> None:
    for name, its in zip(names, metrics, strict=True):
        own = [metric for metric in its.curves if not all(metric in other.curves for other in metrics)]
        if own:
            console.print(f"\nnot in all runs, but in {name}: {', '.join(own)}")


def _short(value: float) -> str:
    return f"{value:.4g}"


def _as_json(runs: Sequence[RunRecords], metrics: Sequence[Metrics], shared: Shared, last: int) -> dict[str, Any]:
    names = labels(runs)

    def row(curve: Curve) -> dict[str, float | None]:
        best, step = curve.best or (None, None)
        return {"final": curve.final, "mean": curve.mean(last), "best": best, "best_step": step}

    return {
        "runs": [
            {"name": name, "path": str(each.path), "steps": its.last_step, "versions": dict(each.versions)}
            for name, each, its in zip(names, runs, metrics, strict=True)
        ],
        "differences": {key: dict(zip(names, values, strict=True)) for key, values in differences(runs).items()},
        "metrics": {
            metric: {name: row(curve) for name, curve in zip(names, curves, strict=True)}
            for metric, curves in shared.items()
        },
    }
