"""Callbacks that tests of whole runs share."""

from __future__ import annotations

from collections.abc import Callable

from areal_lit import hookimpl
from areal_lit.contracts import Callback
from areal_lit.token_batch import TokenBatch


class AtStep(Callback):
    """Do something at the end of a step."""

    def __init__(self, step: int, do: Callable[[], object]) -> None:
        self.step = step
        self.do = do

    @hookimpl
    def step_end(self, step: int) -> None:
        if step == self.step:
            self.do()


class Recorder(Callback):
    """Keeps every step's batch."""

    def __init__(self) -> None:
        self.batches: list[TokenBatch] = []

    @hookimpl
    def batch_ready(self, batch: TokenBatch) -> None:
        self.batches.append(batch)
