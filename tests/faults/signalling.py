"""What sends signals from within a run, or keeps it waiting; for recipes."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

from fault_parts import InPhase

from areal_lit import hookimpl
from areal_lit.contracts import Callback
from areal_lit.text import TextCodec
from areal_lit_data.arithmetic import Arithmetic


def signal_group(*names: str) -> None:
    """Send signals to this process and all of its group, as a terminal does."""
    for name in names:
        os.killpg(os.getpgrp(), getattr(signal, name))


class SignalIn(InPhase):
    """A signal, once or more, at the beginning of a phase.

    Args:
        phase: of the loop.
        step: at which.
        signals: their names.
    """

    def __init__(self, *, phase: str, step: int, signals: list[str]) -> None:
        super().__init__(phase, step, partial(signal_group, *signals))


class SignalAtStart(Arithmetic):
    """A signal while the data is loaded and the processes start."""

    def setup(self, codec: TextCodec) -> None:
        signal_group("SIGTERM")


class WaitFor(Callback):
    """The first step ends once a file ``go`` is there; one called ``waits`` tells that it waits.

    Args:
        path: where they are.
    """

    def __init__(self, *, path: str) -> None:
        self.path = Path(path)

    @hookimpl
    def step_end(self) -> None:
        (self.path / "waits").touch()
        deadline = time.monotonic() + 240
        while not (self.path / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
