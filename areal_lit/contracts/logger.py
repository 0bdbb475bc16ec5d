"""RunLogger: where numbers, samples and figures of a run go."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from areal_lit.contracts.component import Component
from areal_lit.types import Group


class RunLogger(Component):
    """Receives what a run reports, on the training thread."""

    @abstractmethod
    def setup(self, run_dir: Path, config: Mapping[str, Any], step: int) -> None:
        """Open; on resume (``step`` > 0) go on after that step."""

    @abstractmethod
    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers of one step; keys are ``phase/name``."""

    def samples(self, step: int, groups: Sequence[Group]) -> None:
        """What was trained on."""

    def figure(self, step: int, name: str, path: Path) -> None:
        """A PNG that was written or updated."""

    def close(self, status: str) -> None:
        """The run ended: ``finished``, ``failed`` or ``interrupted``."""
