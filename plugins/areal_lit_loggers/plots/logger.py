"""plots/*.png: the curves of a run, kept up to date while it goes on."""

from __future__ import annotations

import json
import logging
import math
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from areal_lit.bounded_curve import BoundedCurve
from areal_lit.contracts import RunLogger
from areal_lit.run_records import read_rows
from areal_lit_loggers.plots.drawing import Order
from areal_lit_loggers.plots.pages import OVERVIEW

SHARE_OF_CPU = 0.02
"""Of one core: drawing waits until what the last drawing took is this share of the time since."""

KILL_TIMEOUT_S = 10.0
SHARE_OF_RUN = 0.05
"""Drawing waits for this share of the time that the run has taken so far: long runs are drawn more rarely."""

LOWEST_PRIORITY = 19

DIRECTORY = "plots"

LAST_DRAWING_S = 60.0
"""For the drawing at the end of a run, which the run waits for."""

logger = logging.getLogger("areal_lit.plots")


class Plots(RunLogger):
    """Draws ``plots/``: each metric light, its smoothed course over it.

    ``reward``, ``length``, ``entropy``, ``staleness``, ``mismatch`` and ``time`` have a picture each, all other metrics
    one per prefix of their names (``train``, ``rollout``, ``eval_SET``), and the usual ones share ``overview``. A
    process of lowest priority draws, and the last state is always drawn. One evaluation without training is a point and
    gets no picture. After a resume the earlier part of the curves comes from metrics.csv, where the `csv` logger keeps
    it.

    Args:
        every_s: draw at most this often, more rarely the longer the run and the dearer the drawing, and at the end.
        overview: names or patterns (``eval/*/reward``) of its metrics; those a run does not report, or as 0 only, are
            left out. None is a choice of the usual ones.
        smoothing_steps: time constant of the smoothed lines, in steps, and at least a fiftieth of the run; 0 leaves
            them out.
    """

    draws = True

    def __init__(
        self, *, every_s: float = 15.0, overview: Sequence[str] | None = None, smoothing_steps: float = 10.0
    ) -> None:
        if every_s < 0 or smoothing_steps < 0:
            raise ValueError(f"every_s and smoothing_steps must be >= 0, got {every_s} and {smoothing_steps}")
        self.every_s = every_s
        self.overview = OVERVIEW if overview is None else tuple(overview)
        self.smoothing_steps = smoothing_steps
        self._curves: dict[str, BoundedCurve] = {}
        self._figures: dict[str, Path] = {}
        self._drawing: Drawing | None = None
        self._is_stale = False
        self._start_s = 0.0
        self._next_s = math.inf

    @property
    def writes(self) -> str:
        return DIRECTORY

    def setup(self, run_dir: Path, config: Mapping[str, Any], step: int) -> None:
        self._directory = run_dir / DIRECTORY
        self._title = run_dir.name
        self._start_s = time.monotonic()
        self._next_s = self._start_s + self.every_s
        for row in read_rows(run_dir / "metrics.csv") if step > 0 else ():
            if row.step <= step:
                self._add(row.step, row.numbers())

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._add(step, values)
        if self._drawing is not None and self._drawing.is_over:
            self._end_drawing()
        if self._drawing is None and time.monotonic() >= self._next_s:
            self._draw(niceness=LOWEST_PRIORITY)

    def new_figures(self) -> Mapping[str, Path]:
        figures, self._figures = self._figures, {}
        return figures

    def hurry(self) -> None:
        if self._drawing is not None:
            self._drawing.kill()
        self._drawing, self._is_stale = None, False

    def close(self, status: str) -> None:
        if self._drawing is not None and self._drawing.is_over:
            self._end_drawing()
        if self._drawing is not None:
            self._drawing.kill()  # it is of an earlier step, and in no hurry
            self._drawing, self._is_stale = None, True
        if self._is_stale and any(
            len(curve) > 1 or not name.startswith("eval/") for name, curve in self._curves.items()
        ):
            self._draw(niceness=0)
            self._end_drawing()

    def _add(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if math.isfinite(value):
                self._curves.setdefault(name, BoundedCurve()).add(step, float(value))
                self._is_stale = True

    def _draw(self, *, niceness: int) -> None:
        self._is_stale = False
        self._drawing = Drawing(
            Order(
                directory=self._directory, title=self._title, overview=self.overview,
                smoothing_steps=self.smoothing_steps,
                curves={name: curve.points() for name, curve in self._curves.items()},
            ),
            niceness=niceness,
        )  # fmt: skip

    def _end_drawing(self) -> None:
        assert self._drawing is not None
        drawing, self._drawing = self._drawing, None
        cpu_s, names = drawing.wait(LAST_DRAWING_S)
        self._is_stale = self._is_stale or not names
        self._figures |= {name: self._directory / f"{name}.png" for name in names}
        now_s = time.monotonic()
        self._next_s = now_s + max(self.every_s, cpu_s / SHARE_OF_CPU, SHARE_OF_RUN * (now_s - self._start_s))


class Drawing:
    """A process that draws once. What it fails of is logged, and ends no run."""

    def __init__(self, order: Order, *, niceness: int) -> None:
        path = [os.path.abspath(entry) for entry in sys.path]
        code = (
            f"import os, sys; os.nice({niceness}); sys.path[:] = {path!r}; "
            f"from areal_lit_loggers.plots.drawing import main; main({os.getpid()})"
        )
        with tempfile.TemporaryFile() as given, ExitStack() as opened:
            self._output = opened.enter_context(tempfile.TemporaryFile())
            self._errors = opened.enter_context(tempfile.TemporaryFile())
            pickle.dump(order, given)
            given.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=given, stdout=self._output, stderr=self._errors,
                env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
            )  # fmt: skip
            self._opened = opened.pop_all()

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        """End it; every picture stays whole, new or old."""
        with self._opened:
            self._kill()

    def wait(self, timeout_s: float) -> tuple[float, Sequence[str]]:
        """CPU seconds it took, and the names of what it drew."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            logger.warning("plots are not up to date: drawing took longer than %g s", timeout_s)
            self._kill()
        with self._opened:
            self._output.seek(0)
            self._errors.seek(0)
            if self._process.returncode == 0:
                told = json.loads(self._output.read())
                return told["cpu_s"], told["names"]
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            logger.warning("plots are not up to date: drawing failed: %s", lines[-1] if lines else "without a word")
            return 0.0, ()

    def _kill(self) -> None:
        self._process.kill()
        try:
            self._process.wait(KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            logger.warning("process %d, which drew plots, has not ended of SIGKILL; left alone", self._process.pid)
