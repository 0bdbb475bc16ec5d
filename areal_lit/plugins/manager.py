"""The pluggy manager of one run: callbacks in the recipe's order, checked before anything starts."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import NoneType, SimpleNamespace, TracebackType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pluggy

from areal_lit import hookspecs
from areal_lit.hookspecs import HookSpecs
from areal_lit.names import closest
from areal_lit.plugins.distributions import dotted_path, origin

PROJECT = "areal_lit"
HOOK_NAMES = tuple(name for name in vars(HookSpecs) if not name.startswith("_"))


class HookError(RuntimeError):
    """A hook implementation raised or returned what the hook does not take.

    The message names hook, class and distribution; the cause is chained.
    """


def create_plugin_manager(callbacks: Sequence[object], *, core: Sequence[object] = ()) -> pluggy.PluginManager:
    """A manager whose hooks run in the order of ``callbacks``; each run (and each rank) owns one.

    Raises ValueError for implementations that pluggy would take and then misuse without a word: misspelt hook names,
    coroutines (never awaited), arguments with defaults (bound to the default for ever), keyword-only
    arguments (never passed), hook names without ``@areal_lit.hookimpl``.

    Args:
        callbacks: objects with hook implementations.
        core: the core's own implementations, called after all callbacks.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(HookSpecs)
    # pluggy calls the last registered first
    for implementation in reversed(core):
        manager.register(implementation, _name(implementation))
    for position, callback in reversed(list(enumerate(callbacks))):
        if any(other is callback for other in callbacks[:position]):
            raise ValueError(f"callbacks[{position}] ({_name(callback)}) is listed twice; construct a second one")
        manager.register(_checked(callback), f"{position}:{_name(callback)}")
    manager.check_pending()
    return manager


def tell_all(manager: pluggy.PluginManager, hook: str, **arguments: Any) -> list[HookError]:
    """Call every implementation of a notify hook, whatever another one raises; returns what was raised."""
    plugins = [implementation.plugin for implementation in reversed(getattr(manager.hook, hook).get_hookimpls())]
    errors = []
    for plugin in plugins:
        alone = manager.subset_hook_caller(hook, [other for other in plugins if other is not plugin])
        try:
            alone(**arguments)
        except HookError as error:
            errors.append(error)
    return errors


def _name(callback: object) -> str:
    return dotted_path(type(callback))


class _Implementations:
    """Functions as attributes, where pluggy looks for them."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        vars(self).update(functions)


def _checked(callback: object) -> _Implementations:
    """The hook implementations of a callback, each wrapped so that an exception says whose it is."""
    implementations = {}
    for name, function in inspect.getmembers(callback, inspect.isroutine):
        is_marked = getattr(function, f"{PROJECT}_impl", None) is not None
        if not is_marked and name not in HOOK_NAMES:
            continue
        problem = _problem(name, function, is_marked=is_marked)
        if problem:
            raise ValueError(f"{origin(callback)}: {name} {problem}")
        implementations[name] = _named(function, callback)
    return _Implementations(implementations)


def _problem(name: str, function: Callable[..., Any], *, is_marked: bool) -> str:
    if not is_marked:
        return "has the name of a hook but is never called; mark it with @areal_lit.hookimpl or rename it"
    if name not in HOOK_NAMES:
        return f"is not a hook; {closest(name, HOOK_NAMES)}"
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "is async, but hooks are synchronous and it would never be awaited; use def"
    known = inspect.signature(getattr(HookSpecs, name)).parameters
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.POSITIONAL_ONLY):
            return f"takes {parameter}, which a hook call never fills; list the arguments by name, without *"
        if parameter.default is not parameter.empty:
            return (
                f"gives {parameter.name} a default, which would silently replace the hook's value; remove the default"
            )
        if parameter.name not in known:
            valid = [argument for argument in known if argument != "self"]
            return f"takes {parameter.name!r}, which is no argument of the hook; {closest(parameter.name, valid)}"
    return ""


def _named(function: Callable[..., Any], callback: object) -> Callable[..., Any]:
    """The implementation, raising HookError: whatever a plugin raises ends the run, with the plugin's name."""
    name = function.__name__

    def error(what: str) -> HookError:
        return HookError(f"hook {name} of {origin(callback)} {what}")

    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            try:
                return (yield from function(*args))
            except HookError:
                raise
            except (Exception, SystemExit) as raised:
                raise error(_raised(raised)) from raised

        return wrapper

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        try:
            result = function(*args)
        except (Exception, SystemExit) as raised:
            raise error(_raised(raised)) from raised
        if wanted := _refusal(name, result):
            raise error(f"returned {result!r:.80}; return {wanted}")
        return _NamedContext(result, error) if name == "phase" and result is not None else result

    return call


def _raised(raised: BaseException) -> str:
    return f"raised {type(raised).__name__}: {raised}"


def _refusal(hook: str, result: object) -> str:
    """What a hook may return, when ``result`` is something else; empty when it is fine."""
    wanted = _answer(hook)
    if result is None or wanted is None:
        return ""
    if wanted is bool:
        return "" if isinstance(result, _booleans()) else "True, False or None"
    if get_origin(wanted) is Literal:
        return "" if result in get_args(wanted) else f"{', '.join(map(repr, get_args(wanted)))} or None"
    return "" if isinstance(result, AbstractContextManager) else "a context manager or None"


@functools.cache
def _answer(hook: str) -> Any:
    """What the specification of a hook lets it return beside None; None where results are ignored."""
    annotation = getattr(HookSpecs, hook).__annotations__["return"]  # those of arguments are not there at run time
    hints = get_type_hints(SimpleNamespace(__annotations__={"return": annotation}), vars(hookspecs))
    return next((each for each in get_args(hints["return"]) if each is not NoneType), None)


def _booleans() -> tuple[type, ...]:
    """bool, and numpy's own where somebody uses it."""
    numpy = sys.modules.get("numpy")
    return (bool,) if numpy is None else (bool, numpy.bool_)


class _NamedContext(AbstractContextManager[object]):
    """A plugin's context manager whose own exceptions name it; it cannot swallow those of the phase."""

    def __init__(self, manager: AbstractContextManager[object], error: Callable[[str], Exception]) -> None:
        self._manager = manager
        self._error = error

    def __enter__(self) -> object:
        try:
            return self._manager.__enter__()
        except (Exception, SystemExit) as raised:
            raise self._error(_raised(raised)) from raised

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._manager.__exit__(kind, value, trace)
        except (Exception, SystemExit) as raised:
            if raised is value:
                raise
            raise self._error(_raised(raised)) from raised
