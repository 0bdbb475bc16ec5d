"""Numbers as a display writes them: short, of steady width, and never wider than they have room."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import groupby, pairwise

from areal_lit.measures import measure_of

GAP = "  "
BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """The course of the values in at most ``width`` characters, each the mean of its stretch."""
    width = min(width, len(values))
    edges = [index * len(values) // width for index in range(width + 1)]
    means = [math.fsum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if high == low:
        return BARS[len(BARS) // 2] * width
    return "".join(BARS[min(len(BARS) - 1, int((mean - low) / (high - low) * len(BARS)))] for mean in means)


def clock(seconds: float) -> str:
    """``1:02:03``."""
    return str(timedelta(seconds=round(seconds)))


def span(seconds: float) -> str:
    """Three digits of a duration: ``76 ms``, ``1.23 s``, ``12.3 s``, ``123 s``."""
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    digits = 2 if seconds < 9.995 else 1 if seconds < 99.95 else 0
    return f"{seconds:.{digits}f} s"


def amount(count: float) -> str:
    """Three to four digits of a count: ``950``, ``5,959``, ``20.1k``, ``1.23M``."""
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= (factor if factor > 1e3 else 1e4):
            scaled = count / factor
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{unit}"
    return f"{count:,.0f}"


def fitting(parts: Iterable[str], width: int) -> str:
    """As many parts from the first on as fit, joined; the first is always there."""
    first, *others = parts
    line = first
    for part in others:
        if len(line) + len(GAP) + len(part) > width:
            break
        line += GAP + part
    return line


def evaluation_parts(step: int, metrics: Mapping[str, float]) -> list[list[str]]:
    """The parts of a line per evaluation set: reward with its 95% interval, loss, what was not scored, length.

    Between them stands all else that is better high, as pass@k and the accuracy on pairs.
    """
    named = sorted((name.removeprefix("eval/").rpartition("/")[::2], value) for name, value in metrics.items())
    lines = []
    for key, members in groupby(named, key=lambda entry: entry[0][0]):
        values = {name: value for (_, name), value in members}
        shown = [f"evaluation  step {step}", key or "all"]
        others = (name for name in values if name != "reward" and measure_of(f"eval/{key}/{name}").best is max)
        for name in ("reward", "loss", "unscored", *sorted(others, key=len), "length"):
            if name in values and (name != "unscored" or values[name]):
                interval = f" ±{values['reward_ci95']:.3f}" if name == "reward" and "reward_ci95" in values else ""
                digits = {"length": 1, "unscored": 0}.get(name, 3)
                shown.append(f"{name} {values[name]:.{digits}f}{interval}")
        lines.append(shown)
    return lines
