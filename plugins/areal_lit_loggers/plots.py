"""plots/*.png: the curves of a run, kept up to date while it goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_lit.contracts import RunLogger
from areal_lit_loggers.csv import read_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = Sequence[tuple[int, float]]

LABELS = {
    "rollout/reward": "reward",
    "rollout/length": "completion length (tokens)",
    "rollout/staleness": "staleness (steps)",
    "rollout/truncated": "truncated (share)",
    "rollout/tokens": "generated tokens per step",
    "train/loss": "loss",
    "train/entropy": "entropy (nats)",
    "train/grad_norm": "gradient norm",
    "train/kl_reference": "KL to the reference",
    "time/step": "seconds per step",
}
INK, GRID, BLUE, ORANGE, GREEN, PURPLE = "#1f2937", "#e5e7eb", "#2563eb", "#ea580c", "#059669", "#7c3aed"
EVAL_COLOURS = (ORANGE, GREEN, PURPLE)
BUDGET = 50
"""Drawing waits until this many times the last drawing's duration has passed: at most 2% of a run."""


class Plots(RunLogger):
    """Draws ``plots/reward.png`` and ``plots/overview.png``: each metric light, its smoothed course over it.

    One evaluation without training is a point and gets no picture. After a resume the earlier part of the curves
    comes from metrics.csv, where the `csv` logger keeps it.

    Args:
        every_s: draw at most this often, and once at the end; nothing is imported before the first time.
        overview: metric keys of the small pictures; those a run does not report are left out. None is a
            choice of the usual ones.
        smoothing_steps: time constant of the smoothed line, in steps; 0 leaves it out.
    """

    def __init__(
        self, *, every_s: float = 30.0, overview: Sequence[str] | None = None, smoothing_steps: float = 10.0
    ) -> None:
        if every_s < 0 or smoothing_steps < 0:
            raise ValueError(f"every_s and smoothing_steps must be >= 0, got {every_s} and {smoothing_steps}")
        self.every_s = every_s
        self.overview = tuple(LABELS)[1:] if overview is None else tuple(overview)
        self.smoothing_steps = smoothing_steps
        self._curves: dict[str, dict[int, float]] = {}
        self._next_s = math.inf
        self._is_stale = False

    def setup(self, run_dir: Path, config: Mapping[str, Any], step: int) -> None:
        self._directory = run_dir / "plots"
        self._title = run_dir.name
        self._next_s = time.monotonic() + self.every_s
        history = run_dir / "metrics.csv"
        if step > 0 and history.exists():
            for row in read_rows(history, until=step)[1]:
                self._add(int(row.pop("step")), {name: float(cell) for name, cell in row.items() if cell})

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._add(step, values)
        if time.monotonic() >= self._next_s:
            self._draw()

    def close(self, status: str) -> None:
        if self._is_stale:
            self._draw()

    def _add(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if self._is_drawn(name) and math.isfinite(value):
                self._curves.setdefault(name, {})[step] = float(value)
                self._is_stale = True

    def _is_drawn(self, name: str) -> bool:
        return name == "rollout/reward" or name in self.overview or _is_eval_reward(name)

    def _draw(self) -> None:
        start_s = time.monotonic()
        curves = {name: sorted(points.items()) for name, points in self._curves.items()}
        rewards = {name: curve for name, curve in curves.items() if name == "rollout/reward" or _is_eval_reward(name)}
        small = {name: curves[name] for name in self.overview if name in curves}
        if "rollout/reward" in rewards or any(len(curve) > 1 for curve in rewards.values()):
            _save(reward_figure(rewards, self._title, self.smoothing_steps), self._directory / "reward.png")
        if small:
            _save(overview_figure(small, self._title, self.smoothing_steps), self._directory / "overview.png")
        self._is_stale = False
        now_s = time.monotonic()
        self._next_s = now_s + max(self.every_s, BUDGET * (now_s - start_s))


def smoothed(curve: Curve, smoothing_steps: float) -> list[float]:
    """Exponential mean over steps, corrected for its start: the first value is the curve's own."""
    total = weight = 0.0
    previous = curve[0][0]
    means = []
    for step, value in curve:
        decay = math.exp(-(step - previous) / smoothing_steps)
        total, weight, previous = total * decay + value, weight * decay + 1.0, step
        means.append(total / weight)
    return means


def reward_figure(curves: Mapping[str, Curve], title: str, smoothing_steps: float) -> Figure:
    """The picture of a run: sampled reward over steps, evaluations as points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), dpi=150, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    _style(axes)
    if "rollout/reward" in curves:
        _line(axes, curves["rollout/reward"], smoothing_steps, label="reward of training samples")
    evaluations = [name for name in curves if _is_eval_reward(name)]
    for index, name in enumerate(evaluations):
        steps, values = zip(*curves[name], strict=True)
        colour = EVAL_COLOURS[index % len(EVAL_COLOURS)]
        label = name.removesuffix("/reward")
        axes.plot(steps, values, "o-", color=colour, markersize=5, linewidth=1.2, label=label, zorder=4)
    every = [value for curve in curves.values() for _, value in curve]
    if min(every) >= 0 and max(every) <= 1:
        axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("training step")
    axes.set_ylabel("reward")
    axes.set_title(title, loc="left", fontweight="bold", color=INK)
    axes.legend(frameon=False, loc="best")
    return figure


def overview_figure(curves: Mapping[str, Curve], title: str, smoothing_steps: float) -> Figure:
    """Small pictures of everything else, three in a row."""
    from matplotlib.figure import Figure

    columns = min(3, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure = Figure(figsize=(4 * columns, 2.5 * rows + 0.4), dpi=110, layout="constrained", facecolor="white")
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", color=INK)
    for index, (name, curve) in enumerate(curves.items()):
        axes = figure.add_subplot(rows, columns, index + 1)
        _style(axes)
        _line(axes, curve, smoothing_steps, label=name)
        axes.set_title(LABELS.get(name, name), loc="left", fontsize=10, color=INK)
        axes.set_xlabel("training step", fontsize=9)
        axes.tick_params(labelsize=8)
    return figure


def _is_eval_reward(name: str) -> bool:
    return name.startswith("eval/") and name.endswith("/reward")


def _line(axes: Axes, curve: Curve, smoothing_steps: float, label: str) -> None:
    steps, values = zip(*curve, strict=True)
    if len(curve) < 3 or not smoothing_steps:
        axes.plot(steps, values, color=BLUE, linewidth=1.6, marker="o" if len(curve) < 3 else None, label=label)
        return
    axes.plot(steps, values, color=BLUE, alpha=0.25, linewidth=1)
    axes.plot(steps, smoothed(curve, smoothing_steps), color=BLUE, linewidth=2.2, label=label, zorder=3)


def _style(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#9ca3af")
    axes.tick_params(colors=INK)


def _save(figure: Figure, path: Path) -> None:
    """Written beside and moved: whoever looks never sees half a picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(f".{path.name}")
    FigureCanvasAgg(figure).print_png(str(partial))
    partial.replace(path)
