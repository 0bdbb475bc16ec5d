"""What rewards report."""

from __future__ import annotations

import threading
from collections import Counter

from areal_lit.types import Metric

UNSCORED_KINDS = ("unscored", "error", "invalid", "timeout", "crash")


class RewardCounters:
    """Events since the last ``take``; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._unscored: Counter[str] = Counter()
        self._num_calls = self._num_retries = self._num_killed = self._longest_queue = 0
        self._seconds = 0.0

    def add_calls(self, num: int, seconds: float) -> None:
        """Calls came to an end that took so long together."""
        with self._lock:
            self._num_calls += num
            self._seconds += seconds

    def add_retry(self) -> None:
        """A call will be made again."""
        with self._lock:
            self._num_retries += 1

    def add_killed_worker(self) -> None:
        """A worker was killed for taking too long."""
        with self._lock:
            self._num_killed += 1

    def add_unscored(self, kind: str) -> None:
        """A trajectory has no reward: one of ``UNSCORED_KINDS``."""
        with self._lock:
            self._unscored[kind] += 1

    def note_queue(self, num: int) -> None:
        """So many trajectories wait for their reward."""
        with self._lock:
            self._longest_queue = max(self._longest_queue, num)

    def take(self) -> list[Metric]:
        """Metrics since the last call; the counters start again."""
        with self._lock:
            sums = {
                "unscored": self._unscored.total(),
                **{f"unscored_{kind}": self._unscored[kind] for kind in UNSCORED_KINDS},
                "retries": self._num_retries,
                "killed_workers": self._num_killed,
            }
            metrics = [Metric(name=f"reward/{name}", sum=float(num), reduction="sum") for name, num in sums.items()]
            metrics.append(Metric(name="reward/seconds", sum=self._seconds, count=float(self._num_calls)))
            metrics.append(Metric(name="reward/queue", sum=float(self._longest_queue), reduction="max"))
            self._reset()
        return metrics
