"""From recipes and overrides to a checked recipe, and on to a Trainer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_lit.contracts import Component
from areal_lit.plugins import Plugins
from areal_lit.recipes.files import RecipeError, layers, parse_value
from areal_lit.secrets import HIDDEN, hidden_keys, learn

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A checked recipe.

    Args:
        config: everything as resolved: dotted paths, defaults filled in; loads again to the same run.
        notes: what was dropped because a later config or override changed a ``class_path``.
    """

    config: dict[str, Any]
    notes: tuple[str, ...] = ()
    _cls: Any = field(repr=False, default=None)
    _parsed: Any = field(repr=False, default=None)
    _parser: Any = field(repr=False, default=None)

    def build(self) -> Trainer:
        """The Trainer of this recipe; constructs every component and starts nothing."""
        from areal_lit.recipes.construction import refusals

        try:
            arguments = vars(self._parser.instantiate(self._parsed))
            trainer: Trainer = self._cls(**arguments)
        # a plugin's constructor may raise anything, sys.exit() included; what no constructor raises is a bug of ours
        except (Exception, SystemExit) as error:
            problems = refusals(self._cls, vars(self._parsed))
            if not problems and not isinstance(error, ValueError):
                raise
            raise RecipeError(*(problems or [_plain(str(error))])) from error
        trainer.config = self.config
        return trainer


def load(*configs: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Trainer:
    """The Trainer that recipes describe, ready for ``fit``.

    Args:
        configs: files, names of shipped recipes, or dictionaries; later ones win.
        overrides: as on the command line: ``["--policy.optimizer.lr=1e-4", "max_steps=3"]``.

    Raises:
        RecipeError: with every unknown key, misfit and missing value.
    """
    flags = [flag if flag.startswith("--") else f"--{flag}" for flag in overrides]
    return resolve(configs, flags).build()


def resolve(
    configs: Sequence[str | Path | Mapping[str, Any]], flags: Sequence[str] = (), *, cls: type | None = None
) -> Recipe:
    """Merge configs and ``--dotted.key value`` flags, and check the outcome.

    Args:
        cls: whose arguments the keys are; the Trainer by default.
    """
    from areal_lit.recipes.resolver import Assignment, Resolver

    assignments = [
        Assignment(keys=(), value=table, source=(index, depth))
        for index, config in enumerate(configs)
        for depth, table in enumerate(layers(config))
    ]
    said_by_flags = read_flags(flags)
    if any(keys == ("base",) for keys, _ in said_by_flags):
        raise RecipeError("--base: a base is named in a recipe; here give it as the first --config")
    assignments += [
        Assignment(keys=keys, value=parse_value(text), source=(len(configs), 0), text=text)
        for keys, text in said_by_flags
    ]
    for said in assignments:
        learn({said.keys[-1]: said.value} if said.keys else said.value)
        if hidden := [".".join(keys) for keys in hidden_keys(said.value, said.keys)]:
            raise RecipeError(f"{', '.join(hidden)}: {HIDDEN!r} stands for a secret that was hidden; write the secret")
    resolver = Resolver(Plugins.discover())
    cls = cls or _trainer_class()
    canonical = resolver.group(cls, assignments, "")
    if resolver.problems:
        raise RecipeError(*dict.fromkeys(resolver.problems))
    return _parsed(cls, canonical, tuple(resolver.notes))


def _parsed(cls: type, canonical: Mapping[str, Any], notes: tuple[str, ...]) -> Recipe:
    from jsonargparse import ArgumentError, ArgumentParser

    parser = ArgumentParser(exit_on_error=False, add_help=False)
    parser.add_class_arguments(cls)
    try:
        parsed = parser.parse_object(canonical)
        text = parser.dump(parsed, skip_unset=False, skip_validation=True)
    except (ArgumentError, ValueError, TypeError) as error:
        raise RecipeError(_plain(str(error))) from error
    return Recipe(config=parse_value(text), notes=notes, _cls=cls, _parsed=parsed, _parser=parser)


def read_flags(flags: Sequence[str]) -> list[tuple[tuple[str, ...], str]]:
    """``--a.b=c`` and ``--a.b c`` as (keys, text)."""
    found = []
    rest = list(flags)
    while rest:
        flag = rest.pop(0)
        if not re.match(r"--[A-Za-z_]", flag):
            raise RecipeError(f"{flag!r} is no override; write --key value or --key=value")
        name, equals, text = flag[2:].partition("=")
        if not equals:
            if not rest or re.match(r"--[A-Za-z_]", rest[0]):
                raise RecipeError(f"--{name} needs a value; a switch is set with --{name} true or --{name} false")
            text = rest.pop(0)
        found.append((tuple(name.split(".")), text))
    return found


def _trainer_class() -> type[Any]:
    found: type[Any] = import_module("areal_lit.trainer").Trainer
    return found


def _plain(message: str) -> str:
    """What is wrong, out of jsonargparse's account of every alternative it tried."""
    lines = [line.strip().removeprefix("- ") for line in message.splitlines()]
    noise = ("Does not validate against", "Subtypes:", "Errors:", "Given value", "Expected a <class 'NoneType'>")
    kept = [line for line in lines if line and not line.startswith(noise)]
    return "\n".join(kept) or message


def describe_config(trainer: Trainer) -> dict[str, Any]:
    """What ``config.yaml`` says of a Trainer built in Python: a recipe where its values can be written in one."""
    config: dict[str, Any] = _described(trainer)
    return config


def _described(value: Any) -> Any:
    from areal_lit.plugins.distributions import dotted_path
    from areal_lit.recipes.schema import parameters_of

    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _described(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [_described(item) for item in value]
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    cls: Any = type(value)
    stored = {name: getattr(value, name, getattr(value, f"_{name}", value)) for name in parameters_of(cls)}
    arguments = {name: _described(item) for name, item in stored.items() if item is not value}
    return {"class_path": dotted_path(cls), "init_args": arguments} if isinstance(value, Component) else arguments
