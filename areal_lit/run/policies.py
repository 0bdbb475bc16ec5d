"""The core's own hook implementations: default policies, and the clock around phases."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from areal_lit.hookspecs import PhaseName, hookimpl
from areal_lit.types import Metric

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


class DefaultPolicies:
    """When to sync, evaluate and save, unless a callback decides otherwise.

    Args:
        best_score: of the best checkpoint so far, None if there is none; asked for at the first evaluation.
    """

    def __init__(self, best_score: Callable[[], float | None]) -> None:
        self._best_score = best_score
        self._best: float | None = None
        self._is_best_known = False
        self._best_step = -1
        self._saved_s = time.monotonic()

    @hookimpl(trylast=True)
    def should_sync_weights(self, trainer: Trainer, step: int) -> bool:
        return step % trainer.sync.interval == 0 or step == trainer.max_steps

    @hookimpl(trylast=True)
    def should_evaluate(self, trainer: Trainer, step: int) -> bool:
        return trainer.evaluation.is_due(step, is_last=step == trainer.max_steps)

    @hookimpl(trylast=True)
    def should_checkpoint(self, trainer: Trainer, step: int) -> bool:
        return step == self._best_step or trainer.checkpoint.is_due(
            step, is_last=step == trainer.max_steps, seconds_since_save=time.monotonic() - self._saved_s
        )

    @hookimpl
    def checkpoint_save(self) -> None:
        self._saved_s = time.monotonic()

    @hookimpl
    def evaluate_end(self, trainer: Trainer, step: int, metrics: Mapping[str, float]) -> None:
        """Before the first step there is nothing to save."""
        if trainer.checkpoint.best is None or step == 0:
            return
        if not self._is_best_known:
            self._best, self._is_best_known = self._best_score(), True
        score = trainer.checkpoint.best.score(metrics)
        if score is not None and (self._best is None or score > self._best):
            self._best, self._best_step = score, step


class PhaseClock:
    """Seconds spent in each phase since the last ``metrics`` call, or since everything was started."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._step_start = time.monotonic()

    @hookimpl
    def fit_start(self) -> None:
        self._seconds.clear()
        self._step_start = time.monotonic()

    @hookimpl
    def phase(self, name: PhaseName) -> AbstractContextManager[object]:
        return self._measure(name)

    @contextmanager
    def _measure(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] += time.monotonic() - start

    def metrics(self) -> list[Metric]:
        """``time/PHASE`` and ``time/step``, the wall time since the last call; then start anew."""
        now = time.monotonic()
        metrics = [Metric(name=f"time/{name}", sum=seconds, reduction="sum") for name, seconds in self._seconds.items()]
        metrics.append(Metric(name="time/step", sum=now - self._step_start, reduction="sum"))
        self._seconds.clear()
        self._step_start = now
        return metrics
