"""Tracker: what loggers have in common that send a run to an experiment tracker."""

from __future__ import annotations

import os
import signal
import sys
import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from areal_lit.contracts import RunLogger
from areal_lit.readable import prompt_text, whole_characters
from areal_lit.secrets import redact_text
from areal_lit.types import Group
from areal_lit_loggers.trackers.journal import Journal

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

SAMPLE_COLUMNS = ("step", "prompt_id", "sample", "reward", "prompt", "completion")


class Tracker(RunLogger):
    """Opens one run of a tracker per run, goes on with it after a resume, and gives it each step once.

    Steps that the tracker had before a run was interrupted are not given again, because most trackers can take nothing
    back: it keeps the numbers of the first time. Files lie in the directory ``writes`` of the run's, by default one of
    the tracker's name.

    Args:
        samples_per_step: trajectories shown of each step; 0 is none.
    """

    name: ClassVar[str]
    """Short name, which is also the extra's."""
    packages: ClassVar[tuple[str, ...]]
    """What must be importable."""
    takes_back: ClassVar[bool] = False
    """Whether the tracker itself drops the numbers and figures past the step that a resumed run goes on from."""

    def __init__(self, *, samples_per_step: int = 8) -> None:
        if samples_per_step < 0:
            raise ValueError(f"samples_per_step must be >= 0, got {samples_per_step}")
        self.samples_per_step = samples_per_step
        self._journal: Journal | None = None

    # --- what a tracker has to say ---------------------------------------------------------------

    def environment(self, directory: Path) -> Mapping[str, str]:
        """Environment variables that the library is used with."""
        return {}

    @abstractmethod
    def open(self, directory: Path, config: Mapping[str, Any], journal: Journal, step: int) -> None:
        """Start the tracker's run, or go on with ``journal.run_id``; note its id there."""

    @abstractmethod
    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers of a step that the tracker does not have yet."""

    def log_samples(self, step: int, rows: Sequence[Sequence[Any]]) -> None:
        """Trajectories, a row each, as ``SAMPLE_COLUMNS``."""

    def log_figure(self, step: int, name: str, path: Path) -> None:
        """A PNG."""

    def log_artifact(self, step: int, name: str, path: Path) -> None:
        """A committed directory."""

    @abstractmethod
    def finish(self, status: str) -> None:
        """End the tracker's run; ``finished``, ``failed`` or ``interrupted``."""

    def problems(self) -> Iterable[str]:
        """Why it cannot be opened, each with the way out."""
        missing = [package for package in self.packages if not _is_installed(package)]
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            yield (
                f"logger {self.name} needs {' and '.join(missing)}, which {verb} not installed: "
                f"pip install 'areal-lit[{self.name}]'"
            )

    # --- the contract ----------------------------------------------------------------------------

    @property
    def writes(self) -> str:
        return self.name

    def rules(self, trainer: Trainer) -> Iterable[str]:
        return self.problems()

    def setup(self, run_dir: Path, config: Mapping[str, Any], step: int) -> None:
        for problem in self.problems():
            raise RuntimeError(problem)
        directory = run_dir / self.writes
        try:
            directory.mkdir(parents=True, exist_ok=True)
            journal = Journal(directory / "areal_lit.json", step=step)
        except OSError as error:
            raise RuntimeError(
                f"logger {self.name} cannot write to {directory} ({error.strerror}); make it writable or give the run "
                "another directory (runs_dir)"
            ) from error
        self._environment = self.environment(directory)
        with undisturbed(), with_variables(self._environment):
            self.open(directory, config, journal, step)
        self._journal = journal

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        if values and self._is_new(step):
            with with_variables(self._environment):
                self.log_metrics(step, {name: float(value) for name, value in values.items()})
            self._opened().note(step)

    def samples(self, step: int, groups: Sequence[Group]) -> None:
        rows = sample_rows(step, groups, self.samples_per_step)
        if rows and self._opened().is_new(step):
            with with_variables(self._environment):
                self.log_samples(step, rows)

    def figure(self, step: int, name: str, path: Path) -> None:
        if self._is_new(step):
            with with_variables(self._environment):
                self.log_figure(step, name, path)

    def artifact(self, step: int, name: str, path: Path) -> None:
        self._opened()
        with with_variables(self._environment):
            self.log_artifact(step, name, path)

    def close(self, status: str) -> None:
        if self._journal is not None:
            self._journal = None
            with undisturbed(), with_variables(self._environment):
                self.finish(status)

    def _is_new(self, step: int) -> bool:
        return self.takes_back or self._opened().is_new(step)

    def _opened(self) -> Journal:
        if self._journal is None:
            raise RuntimeError(
                f"the {self.name} logger is closed or was not set up; call setup(run_dir, config, step) first"
            )
        return self._journal


def sample_rows(step: int, groups: Sequence[Group], limit: int) -> list[tuple[Any, ...]]:
    """The first ``limit`` trajectories of a step, as ``SAMPLE_COLUMNS``."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    return [
        (step, t.prompt.prompt_id, t.sample, t.reward, _shown(prompt_text(t.prompt.example.prompt)), _shown(t.text))
        for t in trajectories[:limit]
    ]


def sample_text(row: Sequence[Any]) -> str:
    """A row of samples for trackers that show text."""
    _, prompt_id, sample, reward, prompt, completion = row
    return f"prompt {prompt_id}, sample {sample}, reward {reward}\n\n{prompt}\n\n---\n\n{completion}"


@contextmanager
def with_variables(environment: Mapping[str, str]) -> Iterator[None]:
    """With these environment variables, and as before afterwards."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def undisturbed() -> Iterator[None]:
    """What a library changes of the process meanwhile is put back.

    That is the environment, the exception hook and the handlers of SIGINT and SIGTERM, which are the run's.
    """
    variables, hook = dict(os.environ), sys.excepthook
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)
        sys.excepthook = hook
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _is_installed(package: str) -> bool:
    return package in sys.modules or find_spec(package) is not None


def _shown(text: str) -> str:
    """Without secrets, and such that UTF-8 has it."""
    return redact_text(whole_characters(text))
