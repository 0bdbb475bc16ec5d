"""The process that draws: curves on its standard input, pictures in a directory, seconds and names on its output.

A process, because drawing is seconds of Python and would take as much from the threads of a run. It ends with the run's
process.
"""

from __future__ import annotations

import json
import pickle
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from areal_lit.files import replacing
from areal_lit_loggers.plots.pages import pages

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from areal_lit_loggers.plots.figures import Points


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be drawn, and where.

    Args:
        directory: of the pictures.
        title: of the run.
        overview: names or patterns of metrics.
        smoothing_steps: time constant of smoothed lines, in steps; 0 draws none.
        curves: by metric.
    """

    directory: Path
    title: str
    overview: Sequence[str]
    smoothing_steps: float
    curves: Mapping[str, Points]


def draw(order: Order) -> list[str]:
    """Write all pictures, each whole at any time; returns their names."""
    from areal_lit_loggers.plots.figures import page_figure

    order.directory.mkdir(exist_ok=True)
    silent = [name for name, (_, values) in order.curves.items() if not any(values)]
    found = pages(order.curves, overview=order.overview, silent=silent)
    for page in found:
        figure = page_figure(page, order.curves, title=order.title, smoothing_steps=order.smoothing_steps)
        _save(figure, order.directory / f"{page.name}.png")
    return [page.name for page in found]


def _save(figure: Figure, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with replacing(path) as partial:
        FigureCanvasAgg(figure).print_png(str(partial))


def main(parent_pid: int) -> None:
    """Draw what standard input says."""
    from areal_lit.parent_death import die_with

    die_with(parent_pid, signal.SIGKILL)
    names = draw(pickle.load(sys.stdin.buffer))
    print(json.dumps({"cpu_s": time.process_time(), "names": names}))
