"""check_callback: the conformance suite of callbacks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from areal_lit.contracts import Callback
from areal_lit.plugins.manager import HOOK_NAMES, create_plugin_manager
from areal_lit.testing.component import check_component, require
from areal_lit.testing.filter import make_group

VETOES = ("rollout_admit", "group_ready")
POLICIES: Mapping[str, tuple[object, ...]] = {
    "rollout_error": (None, "retry", "drop", "raise"),
    "should_sync_weights": (None, True, False),
    "should_evaluate": (None, True, False),
    "should_checkpoint": (None, True, False),
}
METRICS = {"rollout/reward": 0.5, "rollout/staleness": 1.0, "time/step": 0.25, "train/loss": -0.5}


def check_callback(
    make: Callable[[], Callback], directory: Path, *, trainer: Any = None, arguments: Mapping[str, Any] | None = None
) -> None:
    """Raise AssertionError unless the callback can be registered and lives through a short run.

    ::

        def test_callback(tmp_path):
            check_callback(MyCallback, tmp_path)

    Args:
        make: constructs the callback.
        directory: an empty directory, passed as a checkpoint's.
        trainer: what hooks receive; by default an object with ``name``, ``step`` and ``max_steps`` only.
        arguments: values for hook arguments that the suite cannot make up (``batch``, ``model``); hooks that need
            one which is not given are registered and not called.
    """
    callback = check_component(make, "callback")
    marked = [name for name in HOOK_NAMES if hasattr(getattr(callback, name, None), "areal_lit_impl")]
    try:
        create_plugin_manager([callback])
    except ValueError as error:
        raise AssertionError(str(error)) from error
    require(marked, f"{type(callback).__name__} implements no hook; mark methods with @areal_lit.hookimpl")
    trainer = trainer or SimpleNamespace(name="check", step=0, max_steps=2)
    group = make_group((0.0, 1.0))
    known = {
        "trainer": trainer, "group": group, "prompt": group.prompt, "metrics": METRICS, "directory": directory,
        "seconds": 0.1, "version": 1, "attempt": 0, "error": ConnectionError("the engine is gone"), "role": "policy",
        **(arguments or {}),
    }  # fmt: skip
    for status in ("finished", "failed"):
        run = _Run(make(), known)
        run.all(trainer, status)
    _Run(make(), known).call("fit_end", status="failed")


class _Run:
    """Calls the hooks of one callback in the order of a run."""

    def __init__(self, callback: Callback, known: Mapping[str, Any]) -> None:
        self._callback = callback
        self._known = known

    def all(self, trainer: Any, status: str) -> None:
        for name in ("configure", "fit_start"):
            self.call(name)
        for step in (1, 2):
            for name in (*VETOES, "rollout_error", "rollout_finish", "batch_ready", "before_optimizer_step"):
                self.call(name, step=step)
            for phase in ("wait_batch", "prepare", "train", "sync_weights", "evaluate", "checkpoint"):
                self.call("phase", step=step - 1, name=phase)
            trainer.step = step
            for name in (
                "should_sync_weights",
                "weights_synced",
                "should_evaluate",
                "evaluate_end",
                "should_checkpoint",
            ):
                self.call(name, step=step)
            self.call("checkpoint_save", step=step)
            self.call("step_end", step=step)
        self.call("checkpoint_load", step=2)
        self.call("fit_end", status=status)

    def call(self, hook: str, /, **arguments: Any) -> None:
        function = getattr(self._callback, hook, None)
        if not hasattr(function, "areal_lit_impl"):
            return
        assert function is not None
        available = {**self._known, **arguments}
        wanted = inspect.signature(function).parameters
        if not wanted.keys() <= available.keys():
            return
        try:
            result = function(**{parameter: available[parameter] for parameter in wanted})
        except Exception as error:  # whatever a foreign hook raises here is the finding, and is chained
            raise AssertionError(
                f"{hook} raised {type(error).__name__}: {error}; a hook that raises ends the run, and fit_end is also "
                "called for a run that failed before fit_start"
            ) from error
        if hook in VETOES:
            require(
                result is None or isinstance(result, bool), f"{hook} must return True, False or None, got {result!r}"
            )
        elif hook in POLICIES:
            require(result in POLICIES[hook], f"{hook} must return one of {POLICIES[hook]}, got {result!r}")
        elif hook == "phase":
            _check_phase(result)
        else:
            require(result is None, f"{hook} is a notification: its result {result!r} would be ignored, return nothing")


def _check_phase(manager: object) -> None:
    if manager is None:
        return
    require(
        isinstance(manager, AbstractContextManager),
        f"phase must return a context manager or None, got {manager!r}; decorate a generator with @contextmanager",
    )
    assert isinstance(manager, AbstractContextManager)
    try:
        with manager:
            raise KeyError("check")
    except KeyError:
        return
    raise AssertionError(
        "the context manager of phase swallows exceptions of the loop; use try/finally and return nothing"
    )
