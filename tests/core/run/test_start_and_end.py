"""The start and the end of a run: who is told, and in which order."""

from __future__ import annotations

import gc
import os
import signal
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import areal_lit
from areal_lit import recipes
from areal_lit.contracts import Callback, RunLogger, Snapshot
from areal_lit.plugins import HookError
from areal_lit_single.strategy import Single


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


class Hurries(Closes):
    def hurry(self) -> None:
        self.told.append("hurry")


class Stops(Callback):
    """As the second Ctrl-C does."""

    @areal_lit.hookimpl
    def configure(self) -> None:
        raise KeyboardInterrupt


def test_loggers_are_told_that_the_run_is_to_end_at_once(tmp_path: Path) -> None:
    told: list[str] = []
    trainer = recipes.load("quickstart_inline", overrides=[f"runs_dir={tmp_path}"])
    trainer.loggers, trainer.callbacks = [Hurries(told)], [Stops()]
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert told == ["hurry", "logger: interrupted"]


class Interrupted(Closes):
    """Two Ctrl-Cs come while it closes."""

    def close(self, status: str) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        super().close(status)


@pytest.mark.parametrize("fails", [False, True])
def test_signals_while_loggers_close_change_nothing_of_what_became_of_the_run(tmp_path: Path, fails: bool) -> None:
    told: list[str] = []
    trainer = recipes.load(
        "quickstart_inline", overrides=[f"runs_dir={tmp_path}", "max_steps=2", "checkpoint.export_hf=false"]
    )
    trainer.loggers = [Interrupted(told), Closes(told)]
    trainer.callbacks = [Ends(told), *([FailsAfterOneStep()] if fails else [])]
    with pytest.raises(HookError, match="boom") if fails else nullcontext():
        trainer.fit()
    status = "failed" if fails else "finished"
    assert told == [f"logger: {status}", f"callback: {status}, None"]


class Collects(Callback):
    """Whether garbage is collected while the first evaluation goes on."""

    def __init__(self) -> None:
        self.told: list[bool] = []

    @areal_lit.hookimpl
    def evaluate_end(self) -> None:
        self.told.append(gc.isenabled())


def test_garbage_is_collected_again_before_the_first_evaluation(tmp_path: Path) -> None:
    trainer = recipes.load(
        "quickstart_inline",
        overrides=[f"runs_dir={tmp_path}", "max_steps=1", "evaluation={at_start: true, max_prompts: 1}", "loggers=[]"],
    )
    trainer.callbacks = [collects := Collects()]
    trainer.fit()
    assert collects.told
    assert all(collects.told)


FAILED = threading.Event()


class Late(Snapshot):
    """Is written when the run has failed."""

    def save(self, directory: Path) -> None:
        assert FAILED.wait(30)
        (directory / "saved").touch()

    def export_hf(self, directory: Path) -> None: ...


class SavesLate(Single):
    def snapshot(self) -> Late:  # type: ignore[override]
        return Late()


class FailsAfterOneStep(Callback):
    @areal_lit.hookimpl
    def phase(self, name: str, step: int) -> None:
        if (name, step) == ("wait_batch", 1):
            FAILED.set()
            raise RuntimeError("boom")


class Artifacts(Closes):
    def artifact(self, step: int, name: str, path: Path) -> None:
        self.told.append(f"{name} of step {step}")


def test_loggers_hear_of_the_checkpoint_that_a_failure_interrupted(tmp_path: Path) -> None:
    told: list[str] = []
    trainer = recipes.load(
        "quickstart_inline",
        overrides=[f"runs_dir={tmp_path}", "checkpoint={every_steps: 1, at_end: false, export_hf: false}"],
    )
    trainer.policy = replace(trainer.policy, strategy=SavesLate())
    trainer.loggers, trainer.callbacks = [Artifacts(told)], [FailsAfterOneStep()]
    with pytest.raises(HookError, match="boom"):
        trainer.fit()
    assert told == ["checkpoint of step 1", "logger: failed"]
