"""Loggers: all of a run as one. What one draws reaches the others; what one raises keeps no number from them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from areal_lit.contracts import RunLogger
from areal_lit.plugins.distributions import origin
from areal_lit.run.interrupts import interrupted_after
from areal_lit.types import Group

logger = logging.getLogger(__name__)


class LoggerError(RuntimeError):
    """A logger raised; the message names call, class and distribution, the cause is chained."""


class Loggers:
    """Tells every logger that has not failed; ``check`` raises what the first one raised.

    Args:
        hurry_s: longest that one may take to close once it was told to hurry.
    """

    def __init__(self, members: Sequence[RunLogger] = (), *, hurry_s: float = 5.0) -> None:
        self.members = members
        self._hurry_s = hurry_s
        self._is_hurried = False
        self._working = list(members)
        self._step = 0
        self._failure: LoggerError | None = None

    def setup(self, run_dir: Path, config: Mapping[str, Any], step: int) -> None:
        """Open all of them. Raises LoggerError."""
        self._step = step
        for member in self.members:
            self._tell(member, "setup", run_dir, config, step)
            self.check()

    def check(self) -> None:
        """Raise LoggerError if a logger has failed."""
        if self._failure is not None:
            raise self._failure

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._step = step
        self._tell_all("metrics", step, values)
        for member in self.members:
            self._pass_figures_on(member)

    def samples(self, step: int, groups: Sequence[Group]) -> None:
        self._tell_all("samples", step, groups)

    def artifact(self, step: int, name: str, path: Path) -> None:
        self._tell_all("artifact", step, name, path)

    def hurry(self) -> None:
        """Have ``close`` take no longer than it must."""
        self._is_hurried = True
        self._tell_all("hurry")

    def close(self, status: str) -> None:
        """Close all of them, those that draw first: the others get their last figures. One that is closed gets none.

        An interruption leaves the one that it waits for, and has the others hurry.
        """
        for member in sorted(self.members, key=lambda one: not one.draws):
            try:
                with interrupted_after(self._hurry_s) if self._is_hurried else nullcontext():
                    self._call(member, "close", status)
                    self._pass_figures_on(member)
            except KeyboardInterrupt:
                logger.warning("logger %s did not close in time: what it still had to send may be lost", origin(member))
                self.hurry()
            self._drop(member)

    def _tell_all(self, name: str, *arguments: Any) -> None:
        for member in self.members:
            self._tell(member, name, *arguments)

    def _tell(self, member: RunLogger, name: str, *arguments: Any) -> Any:
        return self._call(member, name, *arguments) if any(member is one for one in self._working) else None

    def _pass_figures_on(self, source: RunLogger) -> None:
        for name, path in (self._tell(source, "new_figures") or {}).items():
            for member in self.members:
                if member is not source:
                    self._tell(member, "figure", self._step, name, path)

    def _drop(self, member: RunLogger) -> None:
        self._working = [one for one in self._working if one is not member]

    def _call(self, member: RunLogger, name: str, *arguments: Any) -> Any:
        try:
            return getattr(member, name)(*arguments)
        # whatever a plugin raises, the other loggers get their step first; ``check`` then ends the run with it
        except Exception as raised:
            self._drop(member)
            error = LoggerError(
                f"{name}() of logger {origin(member)} raised {type(raised).__name__} at step {self._step}: {raised}"
            )
            error.__cause__ = raised
            logger.error("%s", error, exc_info=raised)
            self._failure = self._failure or error
            return None
