"""Activity: what a run does or waits for right now, told by whoever does it, for whoever shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """Something under way: words that go on from "now", and for how many seconds already."""

    what: str
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    what: str | Callable[[], str]
    start_s: float


class Activity:
    """Everything under way in a run, the innermost last. Written by the run's own threads, read by any.

    ``is_ending`` says that the run was asked to end after the current step.
    """

    def __init__(self) -> None:
        self.is_ending = False
        self._entries: list[_Entry] = []

    @contextmanager
    def during(self, what: str | Callable[[], str]) -> Iterator[None]:
        """Say so while the block runs.

        Args:
            what: the words, as in "loading the policy", or what gives them when somebody looks: from any thread, so it
                must neither block nor change anything.
        """
        entry = _Entry(what, time.monotonic())
        self._entries.append(entry)
        try:
            yield
        finally:
            self._entries.remove(entry)

    def now(self) -> Doing | None:
        """The innermost thing under way; None when the run is busy with work of its own."""
        for entry in self._entries[-1:]:
            what = entry.what if isinstance(entry.what, str) else entry.what()
            return Doing(what=what, seconds=time.monotonic() - entry.start_s)
        return None
