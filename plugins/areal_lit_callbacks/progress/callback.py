"""How a run is doing, on the terminal: a live picture, or plain lines where there is no terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TextIO, cast

from areal_lit import hookimpl
from areal_lit.contracts import Callback
from areal_lit.validation import has_rewards, roles
from areal_lit_callbacks.progress.course import Course
from areal_lit_callbacks.progress.lines import Lines
from areal_lit_callbacks.progress.notebook import Notebook
from areal_lit_callbacks.progress.output import Output
from areal_lit_callbacks.progress.screen import Screen, is_terminal
from areal_lit_callbacks.progress.summary import summary
from areal_lit_callbacks.progress.terminal import Terminal
from areal_lit_callbacks.progress.words import evaluation_parts, span

if TYPE_CHECKING:
    from areal_lit.hookspecs import PhaseName
    from areal_lit.trainer import Trainer


class Progress(Callback):
    """Shows step, reward, staleness, tokens per second, where the time goes and what is being waited for.

    From the start of the first process on: as a picture at the bottom of a terminal, as one output of a notebook's cell
    that is updated, or as plain lines everywhere else (a file, a pipe, ``TERM=dumb``, a CI job).

    Args:
        every_s: plain lines come at most this often, more rarely the longer the run; beside the first and last step.
        refresh_per_s: how often the picture is drawn anew.
    """

    def __init__(self, *, every_s: float = 5.0, refresh_per_s: float = 4.0) -> None:
        if every_s < 0 or not refresh_per_s > 0:
            raise ValueError(f"every_s must be >= 0 and refresh_per_s > 0, got {every_s} and {refresh_per_s}")
        self.every_s = every_s
        self.refresh_per_s = refresh_per_s
        self._course: Course
        self._screen: Screen | None = None
        self._is_begun = False

    def screen(self, course: Course) -> Screen:
        """What standard output can show. A stream that is merely told to have colours is no terminal."""
        from rich.console import Console

        console = Console(file=cast("TextIO", Output(sys.stdout)) if sys.stdout else None)
        is_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
        if console.is_jupyter:
            return Notebook(course, per_s=self.refresh_per_s)
        if is_terminal(sys.stdout) and console.is_interactive and not is_ci:
            return Terminal(course, console, refresh_per_s=self.refresh_per_s)
        return Lines(course, console, every_s=self.every_s)

    # --- hooks -----------------------------------------------------------------------------------

    @hookimpl
    def configure(self, trainer: Trainer) -> None:
        self._is_begun = False
        self._course = Course(trainer)
        self._screen = self.screen(self._course)
        further = {
            "teacher's server": trainer.teacher_server is not None,
            "engine": not trainer.algorithm.offline,
            "rewards": has_rewards(trainer),
        }
        self._screen.start(", ".join([*roles(trainer), *(part for part, is_there in further.items() if is_there)]))

    @hookimpl
    def fit_start(self, trainer: Trainer) -> None:
        self._is_begun = True
        self._course.begin(trainer.step)
        self._note(f"{trainer.name}: from step {trainer.step} of {trainer.max_steps or 'as many as the data gives'}")

    @hookimpl
    def phase(self, name: PhaseName) -> AbstractContextManager[object]:
        return self._saving() if name == "checkpoint" else self._course.during(name)

    @hookimpl
    def step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._course.take(step, metrics)
        if self._screen is not None:
            self._screen.step()

    @hookimpl
    def evaluate_end(self, step: int, metrics: Mapping[str, float]) -> None:
        for parts in evaluation_parts(step, metrics):
            self._note(*parts)

    @hookimpl
    def fit_end(self, status: str) -> None:
        if self._screen is None:
            return
        screen, self._screen = self._screen, None
        screen.close(summary(self._course, status) if self._is_begun else ())

    def _note(self, *parts: str) -> None:
        if self._screen is not None:
            self._screen.note(*parts)

    @contextmanager
    def _saving(self) -> Iterator[None]:
        start_s = time.monotonic()
        with self._course.during("checkpoint"):
            yield
        waited = span(time.monotonic() - start_s)
        self._note(f"checkpoint  step {self._course.step}", f"training waited {waited}")
