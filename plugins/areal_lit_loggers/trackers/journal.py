"""Journal: what a tracker knows of a run, kept where the run is, so that whatever ends the process loses none of it."""

from __future__ import annotations

import json
from pathlib import Path

from areal_lit.files import replacing


class Journal:
    """The id that a run has at a tracker, and the last step that the tracker was given.

    It is no part of a checkpoint: a run that goes on from another run's checkpoint is another run to the tracker, and
    one that was killed may have given the tracker more steps than its last checkpoint knows of.

    Args:
        path: the file; without one, or with ``step`` 0, the tracker does not know the run yet.
        step: what the run goes on after.
    """

    def __init__(self, path: Path, *, step: int) -> None:
        self.is_resumed = step > 0 and path.exists()
        """Whether the tracker knows the run."""
        known = json.loads(path.read_text()) if self.is_resumed else {"run_id": "", "step": -1}
        self._path = path
        self._run_id: str = known["run_id"]
        self._given_before: int = known["step"]
        self._last = self._given_before
        self._write()

    @property
    def run_id(self) -> str:
        """Empty until the tracker knows the run."""
        return self._run_id

    @run_id.setter
    def run_id(self, run_id: str) -> None:
        self._run_id = run_id
        self._write()

    def is_new(self, step: int) -> bool:
        """Whether no process before this one gave the tracker the step."""
        return step > self._given_before

    def note(self, step: int) -> None:
        """The tracker has it."""
        if step > self._last:
            self._last = step
            self._write()

    def _write(self) -> None:
        with replacing(self._path) as partial:
            partial.write_text(json.dumps({"run_id": self._run_id, "step": self._last}))
