"""Failures: what ends a run from elsewhere than its loop (a process that died, a checkpoint that is lost)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from areal_lit.contracts import Death, ProcessDied
from areal_lit.weight_sync import WeightSyncError

logger = logging.getLogger(__name__)

_DEATH_IS_KNOWN_S = 2.0


class Failures:
    """Keeps the first failure; whoever waits, wherever, must stop waiting. Methods may be called from any thread."""

    def __init__(self) -> None:
        self.first: BaseException | None = None
        self.listeners: list[Callable[[BaseException], None]] = []
        """Told the first one, at once."""
        self._died = threading.Event()

    def on_death(self, death: Death) -> None:
        """A process of the run died; for the launcher's watcher."""
        if self.first is None:
            logger.error("%s", death)
            self.fail(ProcessDied(str(death)))
            self._died.set()

    def fail(self, error: BaseException) -> None:
        """The run ends, at the next phase or in the wait that it is in."""
        if self.first is None:
            self.first = error
            for tell in self.listeners:
                tell(error)

    def check(self) -> None:
        """Raise the first one, if there was any."""
        if self.first is not None:
            raise self.first

    def cause(self, error: BaseException) -> BaseException:
        """The death behind an error. Whoever talks to a process may notice before the one who watches it does."""
        if _is_lost_connection(error):
            self._died.wait(_DEATH_IS_KNOWN_S)
        return self.first or error


def _is_lost_connection(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ConnectionError | WeightSyncError):
            return True
        error = error.__cause__
    return False
