from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

import areal_lit
from areal_lit.contracts import Callback
from areal_lit.plugins import HookError, create_plugin_manager, tell_all


class Recorder(Callback):
    """Notes its name at the end of each step."""

    def __init__(self, *, name: str, calls: list[str]) -> None:
        self.name = name
        self.calls = calls

    @areal_lit.hookimpl
    def step_end(self, step: int) -> None:
        self.calls.append(f"{self.name}{step}")


def test_hooks_run_in_the_order_of_the_list_and_take_the_arguments_they_name() -> None:
    calls: list[str] = []
    manager = create_plugin_manager([Recorder(name=name, calls=calls) for name in "cab"])
    manager.hook.step_end(trainer=None, step=3, metrics={})
    assert calls == ["c3", "a3", "b3"]


def test_all_are_told_in_order_whatever_one_of_them_raises() -> None:
    calls: list[str] = []

    class Fails(Callback):
        @areal_lit.hookimpl
        def step_end(self) -> None:
            calls.append("fails")
            raise KeyError("reward")

    members = [Recorder(name="a", calls=calls), Fails(), Recorder(name="b", calls=calls)]
    errors = tell_all(create_plugin_manager(members), "step_end", trainer=None, step=3, metrics={})
    assert calls == ["a3", "fails", "b3"]
    assert [type(error.__cause__) for error in errors] == [KeyError]


def test_the_first_callback_decides_a_policy_and_the_core_only_if_none_does() -> None:
    class Core:
        @areal_lit.hookimpl(trylast=True)
        def should_evaluate(self, step: int) -> bool:
            return step == 0

    class Decides(Callback):
        def __init__(self, answer: bool | None) -> None:
            self.answer = answer

        @areal_lit.hookimpl
        def should_evaluate(self) -> bool | None:
            return self.answer

    def ask(*callbacks: Callback) -> Any:
        hook = create_plugin_manager(callbacks, core=[Core()]).hook
        return hook.should_evaluate(trainer=None, step=0)

    assert ask() is True
    assert ask(Decides(None)) is True
    assert ask(Decides(None), Decides(False), Decides(True)) is False


def test_managers_share_nothing() -> None:
    calls: list[str] = []
    create_plugin_manager([Recorder(name="a", calls=calls)])
    create_plugin_manager([]).hook.step_end(trainer=None, step=1, metrics={})
    assert calls == []


def test_a_hook_that_raises_is_named_with_its_distribution() -> None:
    class Fails(Callback):
        @areal_lit.hookimpl
        def fit_end(self) -> None:
            raise KeyError("reward")

    with pytest.raises(
        HookError, match=r"hook fit_end of .*Fails \(no distribution\) raised KeyError: 'reward'"
    ) as told:
        create_plugin_manager([Fails()]).hook.fit_end(trainer=None, status="failed")
    assert isinstance(told.value.__cause__, KeyError)


def test_a_wrapper_that_raises_is_named_and_one_inside_it_keeps_its_name() -> None:
    class Wraps(Callback):
        @areal_lit.hookimpl(wrapper=True)
        def fit_end(self) -> Any:
            yield
            raise ValueError("mine")

    class Fails(Callback):
        @areal_lit.hookimpl
        def fit_end(self) -> None:
            raise ValueError("inner")

    with pytest.raises(HookError, match=r"Wraps .*mine"):
        create_plugin_manager([Wraps()]).hook.fit_end(trainer=None, status="failed")
    with pytest.raises(HookError, match=r"Fails .*inner"):
        create_plugin_manager([Wraps(), Fails()]).hook.fit_end(trainer=None, status="failed")


def test_a_context_manager_hook_still_is_one() -> None:
    entered: list[str] = []

    class Times(Callback):
        @areal_lit.hookimpl
        @contextmanager
        def phase(self, name: str) -> Any:
            entered.append(name)
            yield

    (manager,) = create_plugin_manager([Times()]).hook.phase(trainer=None, name="train", step=1)
    with manager:
        assert entered == ["train"]


class Answers(Callback):
    """Gives the same answer to every hook that takes one."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    @areal_lit.hookimpl
    def step_end(self) -> Any:
        return self.answer

    @areal_lit.hookimpl
    def group_ready(self) -> Any:
        return self.answer

    @areal_lit.hookimpl
    def should_evaluate(self) -> Any:
        return self.answer

    @areal_lit.hookimpl
    def rollout_error(self) -> Any:
        return self.answer

    @areal_lit.hookimpl
    def phase(self) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "refusing"),
    [
        (None, set()),
        (False, {"rollout_error", "phase"}),
        (np.bool_(True), {"rollout_error", "phase"}),
        (1, {"group_ready", "should_evaluate", "rollout_error", "phase"}),
        ("retry", {"group_ready", "should_evaluate", "phase"}),
        ("again", {"group_ready", "should_evaluate", "rollout_error", "phase"}),
        (nullcontext(), {"group_ready", "should_evaluate", "rollout_error"}),
    ],
)
def test_hooks_take_the_answers_that_their_specifications_name(answer: Any, refusing: set[str]) -> None:
    hook = create_plugin_manager([Answers(answer)]).hook
    refused = set()
    for name, arguments in {
        "step_end": {"trainer": None, "step": 1, "metrics": {}},
        "group_ready": {"group": None},
        "should_evaluate": {"trainer": None, "step": 1},
        "rollout_error": {"prompt": None, "error": None, "attempt": 1},
        "phase": {"trainer": None, "name": "train", "step": 1},
    }.items():
        try:
            getattr(hook, name)(**arguments)
        except HookError:
            refused.add(name)
    assert refused == refusing


def misspelt(self: Any, step: int) -> None: ...
def has_default(self: Any, step: int = 0) -> None: ...
def keyword_only(self: Any, *, step: int) -> None: ...
def unknown_argument(self: Any, steps: int) -> None: ...
async def coroutine(self: Any, step: int) -> None: ...
def unmarked(self: Any, step: int) -> None: ...


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        ("step_ended", areal_lit.hookimpl(misspelt), r"step_ended is not a hook; did you mean step_end\?"),
        ("step_end", areal_lit.hookimpl(has_default), "gives step a default"),
        ("step_end", areal_lit.hookimpl(keyword_only), r"takes step.*list the arguments by name, without \*"),
        ("step_end", areal_lit.hookimpl(unknown_argument), r"'steps'.*did you mean step\?"),
        ("step_end", areal_lit.hookimpl(coroutine), "is async"),
        ("step_end", unmarked, "mark it with @areal_lit.hookimpl"),
    ],
)
def test_implementations_that_would_be_misused_silently_are_refused(
    name: str, function: Callable[..., Any], message: str
) -> None:
    callback = type("Mine", (Callback,), {name: function})()
    with pytest.raises(ValueError, match=message):
        create_plugin_manager([callback])


def test_one_object_listed_twice_is_refused() -> None:
    callback = Recorder(name="a", calls=[])
    with pytest.raises(ValueError, match=r"callbacks\[1\].*listed twice"):
        create_plugin_manager([callback, callback])


@pytest.mark.parametrize("when", ["enter", "exit"])
def test_a_phase_manager_that_raises_is_named(when: str) -> None:
    class Times(Callback):
        @areal_lit.hookimpl
        def phase(self) -> Any:
            return self.manager()

        @contextmanager
        def manager(self) -> Any:
            if when == "enter":
                raise KeyError("clock")
            yield
            raise KeyError("clock")

    (manager,) = create_plugin_manager([Times()]).hook.phase(trainer=None, name="train", step=0)
    with pytest.raises(HookError, match=r"hook phase of .*Times \(no distribution\) raised KeyError: 'clock'"), manager:
        pass


@pytest.mark.parametrize("swallows", [False, True])
def test_an_error_within_a_phase_is_not_blamed_on_its_managers_nor_swallowed(swallows: bool) -> None:
    class Times(Callback):
        @areal_lit.hookimpl
        def phase(self) -> Any:
            return self.manager()

        @contextmanager
        def manager(self) -> Any:
            try:
                yield
            except ZeroDivisionError:
                if not swallows:
                    raise

    (manager,) = create_plugin_manager([Times()]).hook.phase(trainer=None, name="train", step=0)
    with pytest.raises(ZeroDivisionError), manager:
        raise ZeroDivisionError
