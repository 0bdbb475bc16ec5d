"""PhaseClock: how long a run spends in which phase."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from areal_lit.hookspecs import PhaseName, hookimpl
from areal_lit.types import Metric


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
