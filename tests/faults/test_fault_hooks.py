"""Hooks that raise or return nonsense: the error names them, and what was trained is saved where it is whole."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fault_parts import Rows, Trained, small
from misbehaving import Wayward

from areal_lit import Checkpoint, Evaluation, hookimpl
from areal_lit.contracts import Callback
from areal_lit.plugins import HookError


def raising(hook: str, *, from_step: int = 0, error: BaseException | None = None) -> Callback:
    """A callback whose hook raises once ``from_step`` steps were taken."""
    error = error or LookupError("boom")

    def with_step(self: Any, step: int) -> None:
        if step >= from_step:
            raise error

    def with_version(self: Any, version: int) -> None:
        with_step(self, version)

    def without(self: Any) -> None:
        raise error

    of_steps = ("batch_ready", "step_end", "evaluate_end", "should_checkpoint")
    function = with_step if hook in of_steps else with_version if hook == "weights_synced" else without
    function.__name__ = hook
    return type("Fails", (Callback,), {hook: hookimpl(function)})()


class AfterGroups(Callback):
    """Its hook raises or returns what it is told once so many groups were asked about."""

    def __init__(self, answer: Callable[[], Any], *, groups: int = 5) -> None:
        self.answer = answer
        self.left = groups

    def next(self) -> Any:
        self.left -= 1
        return self.answer() if self.left < 0 else None


class Admits(AfterGroups):
    @hookimpl
    def rollout_admit(self) -> Any:
        return self.next()


class Judges(AfterGroups):
    @hookimpl
    def group_ready(self) -> Any:
        return self.next()


class Finishes(AfterGroups):
    @hookimpl
    def rollout_finish(self) -> Any:
        return self.next()


class Times(Callback):
    """A phase whose manager raises at enter or exit, or is none."""

    def __init__(self, name: str, when: str) -> None:
        self.name = name
        self.when = when

    @hookimpl
    def phase(self, name: str, step: int) -> Any:
        if (name, step) != (self.name, 1):
            return None
        return 7 if self.when == "neither" else self.manager()

    @contextmanager
    def manager(self) -> Any:
        if self.when == "enter":
            raise LookupError("boom")
        yield
        raise LookupError("boom")


def boom() -> Any:
    raise LookupError("boom")


RAISED = r"raised LookupError: boom"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("callback", "says", "saved"),
    [
        (raising("batch_ready", from_step=1), f"hook batch_ready of .*Fails .no distribution. {RAISED}", 1),
        (raising("step_end", from_step=2), f"hook step_end of .* {RAISED}", 2),
        (raising("weights_synced", from_step=2), f"hook weights_synced of .* {RAISED}", 2),
        (raising("evaluate_end", from_step=2), f"hook evaluate_end of .* {RAISED}", 2),
        (raising("should_checkpoint", from_step=2), f"hook should_checkpoint of .* {RAISED}", 2),
        (raising("step_end", from_step=2, error=SystemExit(3)), "hook step_end of .* raised SystemExit: 3", 2),
        (raising("fit_start"), f"hook fit_start of .* {RAISED}", 0),
        (raising("configure"), f"hook configure of .* {RAISED}", 0),
        (raising("fit_end"), f"hook fit_end of .* {RAISED}", 3),
        (raising("before_optimizer_step"), f"hook before_optimizer_step of .* {RAISED}", 0),
        (Admits(boom), f"hook rollout_admit of .*Admits .no distribution. {RAISED}", 2),
        (Judges(boom), f"hook group_ready of .* {RAISED}", 2),
        (Judges(lambda: "no"), "hook group_ready of .* returned 'no'; return True, False or None", 2),
        (Finishes(boom), f"hook rollout_finish of .* {RAISED}", 2),
        (Times("wait_batch", "exit"), f"hook phase of .*Times .* {RAISED}", 1),
        (Times("prepare", "enter"), f"hook phase of .* {RAISED}", 1),
        (Times("train", "exit"), f"hook phase of .* {RAISED}", 2),
        (Times("train", "neither"), "hook phase of .* returned 7; return a context manager or None", 1),
    ],
)
def test_a_broken_hook_is_named_and_what_was_trained_is_saved(
    tmp_path: Path, callback: Callback, says: str, saved: int
) -> None:
    rows = [f"{number}+{number}=" for number in range(6)]
    parts = {
        "data": Rows(rows, evaluation=["1+1="]), "rollout": {"num_epochs": 1}, "evaluation": Evaluation(every_steps=1),
        "checkpoint": Checkpoint(export_hf=False),
    }  # fmt: skip
    run = small(tmp_path, callbacks=[callback], loggers=[before := Trained()], **parts)
    with pytest.raises(HookError, match=says) as raised:
        run.fit()
    checkpoints = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert checkpoints == ([f"step-{saved:08d}"] if saved else [])
    if not 0 < saved < 3:
        return
    assert f"step {saved} is saved; go on with --resume auto" in "".join(raised.value.__notes__)
    small(tmp_path, loggers=[after := Trained()], **parts).fit(resume="auto")
    assert len(after.prompts) == len(set(after.prompts)) == 6 - 2 * saved
    assert not set(after.prompts) & set(before.prompts)


def interrupt() -> Any:
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("callback", [raising("step_end", from_step=2, error=KeyboardInterrupt()), Judges(interrupt)])
def test_an_interrupt_that_no_signal_sent_loses_nothing(tmp_path: Path, callback: Callback) -> None:
    run = small(tmp_path, callbacks=[callback])
    with pytest.raises(KeyboardInterrupt) as raised:
        run.fit()
    log, saved = raised.value.__notes__
    assert "KeyboardInterrupt" in Path(log.removeprefix("traceback: ")).read_text()
    assert saved.startswith("step 2 is saved; go on with --resume auto")
    assert (tmp_path / "run/checkpoints/step-00000002/complete.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "says"), [(boom, RAISED), (lambda: "maybe", "returned 'maybe'; return 'retry', 'drop', 'raise' or None")]
)
def test_a_broken_answer_to_a_failed_episode_is_named(tmp_path: Path, answer: Callable[[], Any], says: str) -> None:
    class Answers(Callback):
        @hookimpl
        def rollout_error(self) -> Any:
            return answer()

    with pytest.raises(HookError, match=f"hook rollout_error of .*Answers .no distribution. {says}"):
        small(tmp_path, workflow=Wayward("raises"), callbacks=[Answers()]).fit()
