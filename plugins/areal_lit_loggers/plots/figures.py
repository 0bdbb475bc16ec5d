"""Figures: a page of panels as a matplotlib figure. Each metric is light, its smoothed course over it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from areal_lit_loggers.plots.pages import Page, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#1f2937", "#6b7280", "#e5e7eb"
COLOURS = ("#2563eb", "#ea580c", "#059669", "#7c3aed", "#db2777", "#0891b2", "#ca8a04", "#64748b")
PHASE_COLOURS = ("#cbd5e1", "#93c5fd", "#2563eb", "#059669", "#ea580c", "#7c3aed")
COLUMNS = 3
SMOOTHED_SHARE = 1 / 50
"""Of a run's steps: the least time constant of smoothed lines, so that long runs are as smooth as short ones."""

Points = tuple[Sequence[float], Sequence[float]]
"""Steps and values."""


def smoothed(steps: Sequence[float], values: Sequence[float], smoothing_steps: float) -> list[float]:
    """Exponential mean over steps, corrected for its start: the first value is the curve's own."""
    total = weight = 0.0
    previous = steps[0]
    means = []
    for step, value in zip(steps, values, strict=True):
        decay = math.exp(-(step - previous) / smoothing_steps)
        total, weight, previous = total * decay + value, weight * decay + 1.0, step
        means.append(total / weight)
    return means


def page_figure(page: Page, curves: Mapping[str, Points], *, title: str, smoothing_steps: float) -> Figure:
    """The page; one or two panels are large, more are small, three in a row."""
    from matplotlib.figure import Figure

    is_small = len(page.panels) > 2
    columns = min(COLUMNS, len(page.panels)) if is_small else 1
    rows = math.ceil(len(page.panels) / columns)
    cell_inches = (4.1, 2.5) if is_small else (8.0, 3.9)
    note_lines = textwrap.wrap(page.note, 130 if is_small else 100)
    head_inches = 0.7 if any(panel.title for panel in page.panels) else 0.45
    left_inches = 0.95 if is_small else 1.15  # for tick labels as long as -2.5e-06
    foot_inches, gap_inches = 0.1 + 0.16 * len(note_lines), 0.6
    width, height = columns * cell_inches[0], rows * cell_inches[1] + 0.4 + foot_inches
    figure = Figure(figsize=(width, height), dpi=110 if is_small else 150, facecolor="white")
    figure.subplots_adjust(
        left=left_inches / width, right=1 - 0.15 / width, top=1 - head_inches / height,
        bottom=(foot_inches + 0.5) / height, wspace=left_inches / (cell_inches[0] - left_inches),
        hspace=gap_inches / (cell_inches[1] - gap_inches),
    )  # fmt: skip
    figure.text(0.15 / width, 1 - 0.3 / height, f"{title}: {page.name}", color=INK, fontweight="bold", fontsize=11)
    figure.text(0.15 / width, 0.08 / height, "\n".join(note_lines), color=MUTED, fontsize=7.5, va="bottom")
    first, last = min(steps[0] for steps, _ in curves.values()), max(steps[-1] for steps, _ in curves.values())
    margin = 0.02 * (last - first) or 0.5
    for index, panel in enumerate(page.panels):
        axes = figure.add_subplot(rows, columns, index + 1)
        axes.set_xlim(first - margin, last + margin)
        _draw(axes, panel, curves, smoothing_steps, is_small=is_small)
        if index + columns >= len(page.panels):
            axes.set_xlabel("training step", fontsize=8 if is_small else 10, color=INK)
    return figure


def _draw(
    axes: Axes, panel: Panel, curves: Mapping[str, Points], smoothing_steps: float, *, is_small: bool
) -> None:  # fmt: skip
    _style(axes, is_small=is_small)
    axes.set_ylabel(panel.unit, fontsize=8 if is_small else 10, color=INK)
    if panel.title:
        axes.set_title(textwrap.shorten(panel.title, 46), loc="left", fontsize=9 if is_small else 10, color=INK)
    if panel.style == "stack":
        _stack(axes, panel, curves, smoothing_steps)
    else:
        for index, (name, label) in enumerate(panel.curves.items()):
            colour = COLOURS[index % len(COLOURS)]
            if name in panel.points:
                axes.plot(*curves[name], "o-", color=colour, markersize=4, linewidth=1.2, label=label, zorder=4)
                if name in panel.intervals:
                    _interval(axes, curves[name], curves[panel.intervals[name]], colour)
            else:
                _line(axes, *curves[name], smoothing_steps, colour, label)
        _limits(axes, panel, curves)
    if len(panel.curves) > 1:
        axes.legend(frameon=False, loc="best", fontsize=8 if is_small else 9)


def _line(
    axes: Axes, steps: Sequence[float], values: Sequence[float], smoothing_steps: float, colour: str, label: str
) -> None:  # fmt: skip
    if len(steps) < 3 or not smoothing_steps:
        axes.plot(steps, values, color=colour, linewidth=1.6, marker="o" if len(steps) < 3 else None, label=label)
        return
    if _is_smooth(values):
        axes.plot(steps, values, color=colour, linewidth=2, label=label)
        return
    constant = max(smoothing_steps, (steps[-1] - steps[0]) * SMOOTHED_SHARE)
    axes.plot(steps, values, color=colour, alpha=0.25, linewidth=1)
    axes.plot(steps, smoothed(steps, values, constant), color=colour, linewidth=2, label=label, zorder=3)


def _is_smooth(values: Sequence[float]) -> bool:
    """Whether a curve (a schedule, a level) goes up and down so little that smoothing could only falsify it."""
    return math.fsum(abs(b - a) for a, b in pairwise(values)) <= 3 * (max(values) - min(values))


def _interval(axes: Axes, points: Points, half_widths: Points, colour: str) -> None:
    """Bars around the points that have a half width."""
    known = dict(zip(*half_widths, strict=True))
    around = [(step, value, known[step]) for step, value in zip(*points, strict=True) if step in known]
    steps, values, widths = zip(*around, strict=True) if around else ((), (), ())
    axes.errorbar(steps, values, yerr=widths, fmt="none", ecolor=colour, elinewidth=1, capsize=2, alpha=0.6, zorder=3)


def _stack(axes: Axes, panel: Panel, curves: Mapping[str, Points], smoothing_steps: float) -> None:
    """Parts of a whole above each other; where one was not reported it took no time."""
    steps = sorted({step for name in panel.curves for step in curves[name][0]})
    parts = []
    for name in panel.curves:
        known = dict(zip(*curves[name], strict=True))
        values = [known.get(step, 0.0) for step in steps]
        parts.append(smoothed(steps, values, smoothing_steps) if smoothing_steps else values)
    axes.stackplot(steps, *parts, labels=list(panel.curves.values()), colors=PHASE_COLOURS, linewidth=0)
    totals = sorted(map(math.fsum, zip(*parts, strict=True)))
    axes.set_ylim(0, 1.25 * totals[math.ceil(0.98 * len(totals)) - 1] or 1.0)


def _limits(axes: Axes, panel: Panel, curves: Mapping[str, Points]) -> None:
    """Room for what is there, but not all for one outlier; shares and rewards between 0 and 1 keep their scale."""
    values = sorted(value for name in panel.curves for value in curves[name][1])
    low, high = values[0], values[-1]
    if panel.style == "log" and low > 0:
        axes.set_yscale("log")  # with ticks of its own
    elif panel.unit in ("share", "reward") and low >= 0 and high <= 1 and (panel.unit == "reward" or high > 0.5):
        axes.set_ylim(-0.02, 1.02)
    elif len(values) >= 50:
        inner_low, inner_high = values[len(values) // 50], values[-1 - len(values) // 50]
        reach = 3 * (inner_high - inner_low)
        if reach:
            margin = 0.05 * (min(high, inner_high + reach) - max(low, inner_low - reach))
            axes.set_ylim(max(low, inner_low - reach) - margin, min(high, inner_high + reach) + margin)


def _style(axes: Axes, *, is_small: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5 if is_small else 8, steps=(1, 2, 5, 10)))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5 if is_small else 7, steps=(1, 2, 2.5, 5, 10)))
    axes.yaxis.set_major_formatter("{x:.6g}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#9ca3af")
    axes.tick_params(colors=INK, labelsize=7.5 if is_small else 9)
