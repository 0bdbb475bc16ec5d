"""Slot: a reward worker with the calls it was given, and the clock of the one that it is in."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from areal_lit.rewarding.calls import Item
from areal_lit.rewarding.processes import Worker


@dataclass(slots=True, eq=False)
class Job:
    """One call on its way. ``owner`` is the submitter's; the pool hands it back untouched."""

    item: Item
    owner: Any
    attempt: int = 1


@dataclass(slots=True, eq=False)
class Slot:
    """A worker and the calls it has not answered, in the order it makes them."""

    worker: Worker
    is_ready: bool = False
    answered: int = 0
    jobs: deque[Job] = field(default_factory=deque)
    _begun: int = field(default=0, init=False)
    _since: float = field(default_factory=time.monotonic, init=False)

    def give(self, batch: list[Job]) -> None:
        """Send calls to make. Raises OSError if the worker takes none, and whatever pickling an example raises."""
        self.worker.connection.send([job.item for job in batch])
        self.jobs.extend(batch)
        self._since = time.monotonic()

    def busy_s(self) -> float:
        """Seconds since it began the call it is in; before the first one, since it was given any or was started."""
        now, begun = time.monotonic(), self.worker.begun()
        if begun != self._begun:
            self._begun, self._since = begun, now
        return now - self._since

    def pop_blamed(self) -> Job:
        """Take out the call it was in when it ended."""
        blamed = max(0, min(self.worker.begun() - self.answered, len(self.jobs)) - 1)
        job = self.jobs[blamed]
        del self.jobs[blamed]
        return job
