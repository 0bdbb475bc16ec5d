"""RunLogger: where the numbers, samples, figures and artifacts of a run go."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from areal_lit.contracts.component import Component
from areal_lit.types import Group


class RunLogger(Component):
    """Receives what a run reports, on the training thread.

    One that raises is told nothing more until ``close``. The other loggers still get the step, then the run ends with
    an error that names the logger, and what it has trained is saved.
    """

    draws: ClassVar[bool] = False
    """True: has figures for the others, and is closed before those that have none."""

    @property
    def writes(self) -> str:
        """File or directory in the run's directory that no other logger may write; empty where it writes none."""
        return ""

    @abstractmethod
    def setup(self, run_dir: Path, config: Mapping[str, Any], step: int) -> None:
        """Open. A resumed run goes on after ``step`` > 0: what an earlier process logged past it must not stay beside
        what is logged again.

        Args:
            run_dir: the run's directory; write nothing outside it unless told to.
            config: the recipe as resolved, without its secrets.
        """

    @abstractmethod
    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers of a step, possibly not finite; keys are ``phase/name``. A step with an evaluation has two calls."""

    def samples(self, step: int, groups: Sequence[Group]) -> None:
        """What was trained on."""

    def figure(self, step: int, name: str, path: Path) -> None:
        """A PNG that another logger drew or drew again."""

    def artifact(self, step: int, name: str, path: Path) -> None:
        """A committed directory: ``model``, or ``checkpoint`` where none is exported. Old checkpoints are deleted."""

    def new_figures(self) -> Mapping[str, Path]:
        """PNGs by name that one that ``draws`` drew since the last call, also in ``close``; the others get them."""
        return {}

    def hurry(self) -> None:
        """The user has the run end at once, and ``close`` comes next: leave out what would take seconds.

        After 5 s it is interrupted, as by Ctrl-C.
        """

    def close(self, status: str) -> None:
        """The run ended: ``finished``, ``failed`` or ``interrupted``. Called in any state, also twice."""
