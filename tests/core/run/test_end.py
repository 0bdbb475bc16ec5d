"""The end of a run: who is told, and in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import areal_lit
from areal_lit import recipes
from areal_lit.contracts import Callback, RunLogger
from areal_lit.plugins import HookError


class Closes(RunLogger):
    def __init__(self, told: list[str]) -> None:
        self.told = told

    def setup(self, run_dir: Path, config: Any, step: int) -> None: ...

    def metrics(self, step: int, values: Any) -> None: ...

    def close(self, status: str) -> None:
        self.told.append(f"logger: {status}")


class Ends(Callback):
    def __init__(self, told: list[str], *, fails: bool = False) -> None:
        self.told = told
        self.fails = fails

    @areal_lit.hookimpl
    def configure(self) -> None:
        if self.fails:
            raise ValueError("no")

    @areal_lit.hookimpl
    def fit_end(self, trainer: Any, status: str) -> None:
        now = trainer.activity.now()
        self.told.append(f"callback: {status}, {now}")
        if self.fails:
            raise KeyError("again")


def test_loggers_close_before_callbacks_hear_of_the_end_and_all_of_those_do(tmp_path: Path) -> None:
    told: list[str] = []
    trainer = recipes.load("quickstart_inline", overrides=[f"runs_dir={tmp_path}"])
    trainer.loggers, trainer.callbacks = [Closes(told)], [Ends(told, fails=True), Ends(told)]
    with pytest.raises(HookError, match=r"configure of .*Ends"):
        trainer.fit()
    assert told == ["logger: failed", "callback: failed, None", "callback: failed, None"]
