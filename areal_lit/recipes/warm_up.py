"""What a run's processes will import, told to its launcher as soon as names are known: from the text of a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from areal_lit.contracts import KINDS, Launcher
from areal_lit.plugins import PluginError, Plugins, kind_of
from areal_lit.plugins.distributions import dotted_path
from areal_lit.recipes.files import RecipeError, layers, parse_value
from areal_lit.recipes.loading import read_flags

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

IN_PROCESSES = frozenset({"algorithm", "strategy", "optimizer", "transport", "inference"})
"""Kinds of components that ranks or engines use."""


def warm_up_for(trainer: Trainer) -> AbstractContextManager[None]:
    """The launcher's ``warm_up`` with everything that the trainer's processes use."""
    from areal_lit.validation import components

    classes = ((kind_of(type(item)), dotted_path(type(item))) for item in components(trainer).values())
    return trainer.launcher.warm_up(_modules(classes))


def warm_up_named(configs: Sequence[str], flags: Sequence[str]) -> AbstractContextManager[None]:
    """The same with what a command line names, before any of it is imported or checked.

    A recipe that is wrong is not the matter here: then nothing is done, and who reads it next says what is wrong.
    """
    try:
        said: list[tuple[tuple[str, ...], Any]] = [((), table) for config in configs for table in layers(config)]
        said += [(keys, parse_value(text)) for keys, text in read_flags(flags)]
        named = _last_named(said)
        plugins = Plugins.discover()
        classes = {keys: (keys[-1], plugins.dotted(keys[-1], name)) for keys, name in named.items()}
        launcher = plugins.load("launcher", named["launcher",])
        assert issubclass(launcher, Launcher)
        return launcher.warm_up(_modules(classes.values()))
    except (RecipeError, PluginError, KeyError):
        return nullcontext()


def _modules(classes: Iterable[tuple[str, str]]) -> list[str]:
    """``module:Class`` of each class that processes use, by kind and dotted path."""
    used = {":".join(path.rpartition(".")[::2]) for kind, path in classes if kind in IN_PROCESSES}
    return ["areal_lit.worker", *sorted(used)]


def _last_named(said: Iterable[tuple[tuple[str, ...], Any]]) -> dict[tuple[str, ...], str]:
    """Components by the keys that lead there: of two for one place the later, and none where null came later."""
    named: dict[tuple[str, ...], str] = {}
    for place, name in _named(said):
        if name is None:
            named = {keys: other for keys, other in named.items() if keys[: len(place)] != place}
        else:
            named[place] = name
    return named


def _named(said: Iterable[tuple[tuple[str, ...], Any]]) -> Iterator[tuple[tuple[str, ...], str | None]]:
    """Components named anywhere and what null takes away, by the keys that lead there, in order."""
    for keys, value in said:
        place = keys[:-1] if keys[-1:] == ("class_path",) else keys
        if isinstance(value, Mapping):
            yield from _named(((*keys, str(key)), item) for key, item in value.items())
        elif isinstance(value, str) and place and place[-1] in KINDS:
            yield place, value
        elif value is None and place:
            yield place, None
