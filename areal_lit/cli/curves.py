"""Curves of several runs: in the terminal, or as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_lit.run_records import Curve

COLOURS = ("blue", "yellow", "green", "magenta", "cyan", "red")
MARGIN = 26
"""Columns that plotille's axis, its numbers and the longest tick take beside the canvas."""


def draw(name: str, curves: Sequence[Curve], labels: Sequence[str], *, width: int, with_colors: bool) -> Any:
    """The curves as text for rich: one picture in colours, or one below the other in the same ranges without them."""
    from rich.text import Text

    if with_colors:
        return Text.from_ansi(_figure(name, curves, labels, curves, width, height=12, with_colors=True))
    parts = [
        _figure(name, [curve], [label], curves, width, height=6, with_colors=False)
        for curve, label in zip(curves, labels, strict=True)
    ]
    return Text("\n\n".join(parts))


def _figure(
    name: str, drawn: Sequence[Curve], labels: Sequence[str], all_curves: Sequence[Curve], width: int, *, height: int,
    with_colors: bool,
) -> str:  # fmt: skip
    """Some of the curves in ranges that fit all of them."""
    import plotille

    figure = plotille.Figure()
    figure.width, figure.height = max(20, width - MARGIN), height
    figure.with_colors, figure.origin = with_colors, False
    figure.x_label, figure.y_label = "step", name
    figure.register_label_formatter(float, _tick)
    low = min(min(curve.values) for curve in all_curves)
    high = max(max(curve.values) for curve in all_curves)
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    figure.set_y_limits(min_=low - margin, max_=high + margin)
    figure.set_x_limits(min_=0.0, max_=float(max(curve.steps[-1] for curve in all_curves)) or 1.0)
    for number, (curve, label) in enumerate(zip(drawn, labels, strict=True)):
        colour = COLOURS[number % len(COLOURS)] if with_colors else None
        figure.plot(list(curve.steps), list(curve.values), lc=colour, label=label)
    return str(figure.show(legend=True))


def _tick(value: float, chars: int, delta: float, left: bool = False) -> str:
    text = f"{value:.3g}"
    return text.ljust(chars) if left else text.rjust(chars)


def write_png(path: Path, shared: Mapping[str, Sequence[Curve]], labels: Sequence[str]) -> Path:
    """Draw the curves one below the other, all runs in each; returns the path."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2 * max(1, len(shared))), layout="constrained")
    for number, (name, curves) in enumerate(shared.items(), start=1):
        axes = figure.add_subplot(len(shared), 1, number)
        for curve, label in zip(curves, labels, strict=True):
            axes.plot(curve.steps, curve.values, label=label, linewidth=1.2)
        axes.set(xlabel="step", ylabel=name)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path
