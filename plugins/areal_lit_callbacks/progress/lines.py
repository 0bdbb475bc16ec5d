"""Lines: plain text at fitting intervals, for log files, pipes and CI jobs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from areal_lit_callbacks.progress.course import Course
from areal_lit_callbacks.progress.picture import step_line
from areal_lit_callbacks.progress.screen import Screen, print_line
from areal_lit_callbacks.progress.words import GAP

if TYPE_CHECKING:
    from rich.console import Console

LINES_PER_RUN = 100
"""Lines come this many times while a run's duration grows by a factor of e: hundreds in a day, not thousands."""

QUIET_FACTOR = 6
"""After so many times the shortest interval without a line, one says what is waited for."""

REMIND_S = 60.0
"""A warning about one kind of thing comes at most this often."""


class Lines(Screen):
    """A line at fitting intervals, without control codes."""

    def __init__(self, course: Course, console: Console, *, every_s: float) -> None:
        self._course = course
        self._console = console
        self._every_s = every_s
        self._printed_step = course.step
        self._last_s = time.monotonic()
        self._is_over = threading.Event()
        self._warned_s: dict[str, float] = {}
        self._thread = threading.Thread(target=self._watch, name="areal-lit-progress", daemon=True)

    def start(self, starting: str) -> None:
        self.note(f"{self._course.name}: starting {starting}")
        self._thread.start()

    def step(self) -> None:
        self._warn()
        pause_s = max(self._every_s, self._course.seconds / LINES_PER_RUN) if self._every_s else 0.0
        is_edge = self._printed_step <= self._course.first_step or self._course.step == self._course.num_steps
        if is_edge or time.monotonic() >= self._last_s + pause_s:
            self._print_step()

    def note(self, *parts: str) -> None:
        self._last_s = time.monotonic()
        print_line(self._console, GAP.join(parts))

    def close(self, summary: Sequence[str]) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._course.step > self._printed_step:
            self._print_step()
        for line in summary:
            self.note(line)

    def _warn(self) -> None:
        """Say what is off when it begins, and again from time to time."""
        now_s, pause_s = time.monotonic(), max(REMIND_S, self._course.seconds / LINES_PER_RUN)
        for kind, sentence in self._course.concerns.items():
            if now_s >= self._warned_s.get(kind, -math.inf) + pause_s:
                self._warned_s[kind] = now_s
                self.note(f"warning at step {self._course.step}: {sentence}")

    def _print_step(self) -> None:
        self._printed_step = self._course.step
        self.note(step_line(self._course))

    def _watch(self) -> None:
        """Where nothing is printed for long, say what is waited for: ever more rarely until a step ends."""
        shortest_s = QUIET_FACTOR * (self._every_s or 1.0)
        quiet_s, step = shortest_s, self._course.step
        while not self._is_over.wait(max(0.1, self._last_s + quiet_s - time.monotonic())):
            if self._course.step != step:
                quiet_s, step = shortest_s, self._course.step
            if time.monotonic() >= self._last_s + quiet_s:
                self.note(f"step {self._course.count}: {self._course.doing()}")
                quiet_s *= 2
