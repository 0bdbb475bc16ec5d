"""Course: what a display knows of a run, as hooks tell it. Read from the thread that draws, under ``lock``."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from areal_lit.bounded_curve import BoundedCurve
from areal_lit.measures import Measure, measure_of
from areal_lit.weight_sync import MismatchAlarm
from areal_lit_callbacks.progress.concerns import concerns

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

DOING = {
    "start": "starting",
    "wait_batch": "waiting for a batch",
    "prepare": "preparing the batch",
    "train": "training",
    "sync_weights": "handing over weights",
    "evaluate": "evaluating",
    "checkpoint": "saving a checkpoint",
    "run": "running",
}
"""Phases, with the start before them and the moments between them, for people."""

RECENT_STEPS = 10
SPEED_STEPS = 50
CURVE_POINTS = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of a recent step, and of each phase in it."""

    step: float
    phases: Mapping[str, float]


class Course:
    """How a run went so far and what it does now.

    Args:
        trainer: looked at, not changed.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.lock = threading.Lock()
        self.name = trainer.name
        self.run_dir = Path(trainer.runs_dir) / trainer.name
        self.is_from_recipe = bool(trainer.config)
        self.num_steps = trainer.max_steps
        self.first_step = self.step = trainer.step
        self.objective = "reward"
        self.curve = BoundedCurve(CURVE_POINTS)
        self.best: float | None = None
        self.last: deque[float] = deque(maxlen=RECENT_STEPS)
        self.num_tokens: dict[str, float] = {}
        self.metrics: Mapping[str, float] = {}
        self.concerns: Mapping[str, str] = {}
        self._first: list[float] = []
        self._num_values = 0
        self._activity = trainer.activity
        self._warn_above = MismatchAlarm(trainer.sync, dtype=trainer.policy.model.dtype).warn_above
        self._start_s = time.monotonic()
        self._phase = ("start", self._start_s)
        self._recent: deque[Mapping[str, float]] = deque(maxlen=RECENT_STEPS)
        self._ends_s: deque[float] = deque(maxlen=SPEED_STEPS + 1)

    # --- told by hooks ---------------------------------------------------------------------------

    def begin(self, step: int) -> None:
        """Everything was started; the loop goes on from ``step``."""
        now_s = time.monotonic()
        self.first_step = self.step = step
        self._phase = ("run", now_s)
        self._ends_s.append(now_s)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """The loop is in this phase."""
        outer = self._phase[0]
        self._phase = (phase, time.monotonic())
        try:
            yield
        finally:
            self._phase = (outer, time.monotonic())

    def take(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is over."""
        with self.lock:
            self.step = step
            self.metrics = dict(metrics)
            self.concerns = concerns(metrics, warn_above=self._warn_above)
            self._recent.append(self.metrics)
            self._ends_s.append(time.monotonic())
            for name in ("rollout/tokens", "rollout/prompt_tokens", "data/tokens"):
                if name in metrics:
                    self.num_tokens[name] = self.num_tokens.get(name, 0.0) + metrics[name]
            name = "rollout/reward" if "rollout/reward" in metrics else "train/loss"
            if math.isfinite(value := metrics.get(name, math.nan)):
                self._take_objective(measure_of(name), step, value)

    def _take_objective(self, measure: Measure, step: int, value: float) -> None:
        assert measure.best is not None
        self.objective = measure.unit
        self.curve.add(step, value)
        self.best = measure.best([value] if self.best is None else [self.best, value])
        self.last.append(value)
        self._num_values += 1
        if len(self._first) < RECENT_STEPS:
            self._first.append(value)

    # --- asked by displays -----------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Since the run was configured."""
        return time.monotonic() - self._start_s

    @property
    def is_ending(self) -> bool:
        """Whether the run was asked to end after the current step."""
        return self._activity.is_ending

    @property
    def count(self) -> str:
        """``step/steps``, as far as known."""
        return f"{self.step}/{self.num_steps}" if self.num_steps else str(self.step)

    @property
    def seconds_left(self) -> float | None:
        """By the speed of the recent steps; None where nothing can be said."""
        if not self.num_steps or len(self._ends_s) < 2:
            return None
        return (self._ends_s[-1] - self._ends_s[0]) / (len(self._ends_s) - 1) * (self.num_steps - self.step)

    def edges(self) -> tuple[float, float] | None:
        """Means of the objective over the first and over the last steps, at most a fifth of all; None below two."""
        if self._num_values < 2:
            return None
        num = max(1, min(RECENT_STEPS, self._num_values // 5))
        return math.fsum(self._first[:num]) / num, math.fsum(list(self.last)[-num:]) / num

    def rate(self, *names: str) -> float | None:
        """A count of recent steps per second of theirs, of the first of these metrics that there is."""
        seconds = math.fsum(metrics.get("time/step", 0.0) for metrics in self._recent)
        for name in names:
            counts = [metrics[name] for metrics in self._recent if name in metrics]
            if counts and seconds:
                return math.fsum(counts) / seconds
        return None

    def times(self) -> Times | None:
        """Means over the recent steps."""
        recent = [metrics for metrics in self._recent if "time/step" in metrics]
        if not recent:
            return None
        mean = {
            name: math.fsum(metrics.get(f"time/{name}", 0.0) for metrics in recent) / len(recent)
            for name in ("step", *DOING)
        }
        return Times(step=mean.pop("step"), phases={name: value for name, value in mean.items() if value})

    def doing(self) -> str:
        """What the run does or waits for right now, and for how long it has."""
        phase, since_s = self._phase
        now = self._activity.now()
        if now is not None and phase == "wait_batch":
            return now.what
        seconds = time.monotonic() - since_s if now is None else now.seconds
        words = DOING[phase] if now is None else now.what if phase == "run" else f"{DOING[phase]}: {now.what}"
        return f"{words}, {seconds:.0f} s" if seconds >= 1 else words
