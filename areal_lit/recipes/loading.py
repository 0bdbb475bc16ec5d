"""Recipes: YAML files whose keys are the Trainer's arguments.

From Python: ``areal_lit.recipes.load("quickstart").fit()``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_lit.contracts import Component
from areal_lit.names import closest
from areal_lit.plugins import Plugins
from areal_lit.secrets import HIDDEN, hidden_keys, learn

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

SHIPPED = "areal_lit_recipes"
"""The package whose YAML files are found by name."""


class RecipeError(ValueError):
    """A recipe is wrong; the message lists everything found, each with the way out."""


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
            raise RecipeError("\n".join(problems) or _plain(str(error))) from error
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
        Assignment(keys=(), value=config if isinstance(config, Mapping) else read(config), source=source)
        for source, config in enumerate(configs)
    ]
    assignments += [
        Assignment(keys=keys, value=parse_value(text), source=len(configs), text=text)
        for keys, text in read_flags(flags)
    ]
    for said in assignments:
        learn({said.keys[-1]: said.value} if said.keys else said.value)
        if hidden := [".".join(keys) for keys in hidden_keys(said.value, said.keys)]:
            raise RecipeError(f"{', '.join(hidden)}: {HIDDEN!r} stands for a secret that was hidden; write the secret")
    resolver = Resolver(Plugins.discover())
    cls = cls or _trainer_class()
    canonical = resolver.group(cls, assignments, "")
    if resolver.problems:
        raise RecipeError("\n".join(dict.fromkeys(resolver.problems)))
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


def read(config: str | Path) -> dict[str, Any]:
    """The table in a YAML file, or in a shipped recipe named without path and suffix."""
    import yaml

    path = find(config)
    try:
        value = yaml.load(path.read_text(encoding="utf-8"), Loader=_loader())
    except RecursionError as error:
        raise RecipeError(f"{config} is nested too deeply for a recipe") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{config} is not UTF-8 text: {error}; save it as UTF-8") from error
    # ValueError: a number of thousands of digits, or a date that does not exist
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(f"{config} is no valid YAML: {error}") from error
    if not isinstance(value, dict):
        raise RecipeError(f"{config} must hold a table of the Trainer's arguments, got {type(value).__name__}")
    return value


def find(config: str | Path) -> Any:
    """The file behind a path or the name of a shipped recipe."""
    path = Path(config).expanduser()
    if path.is_file():
        return path
    name = str(config).removesuffix(".yaml")
    recipes = shipped()
    if name in recipes:
        return recipes[name]
    raise RecipeError(f"there is no file {str(config)!r}, and no recipe of that name; {closest(name, recipes)}")


def shipped() -> dict[str, Any]:
    """The recipes of the installed package by name, sorted."""
    try:
        files = resources.files(SHIPPED).iterdir()
    except ModuleNotFoundError:
        return {}
    return {
        item.name.removesuffix(".yaml"): item
        for item in sorted(files, key=lambda f: f.name)
        if item.name.endswith(".yaml")
    }


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


def parse_value(text: str) -> Any:
    """A YAML value, with ``1e-4`` a number; text that is no YAML stays text."""
    import yaml

    try:
        return yaml.load(text, Loader=_loader())
    except _GivenTwice as error:
        raise RecipeError(str(error)) from error
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


class _GivenTwice(ValueError):
    """A table holds a key twice; PyYAML would keep the last."""


def _loader() -> Any:
    """PyYAML's safe loader, which reads ``1e-4`` as a number and refuses keys given twice and what holds itself."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            events: Any = self  # PyYAML is untyped
            if events.check_event(yaml.AliasEvent):
                alias = events.peek_event()
                target = self.anchors.get(alias.anchor)
                if target is not None and target.end_mark is None:  # it has not ended where it is named
                    raise yaml.composer.ComposerError(
                        None, None, f"*{alias.anchor} stands inside of what it names; write it out", alias.start_mark
                    )
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            merge = "tag:yaml.org,2002:merge"  # `<<: *other`, whose keys those given here override
            keys = [self.construct_object(key, deep=True) for key, _ in node.value if key.tag != merge]
            for key in keys:
                if keys.count(key) > 1:
                    raise _GivenTwice(f"{key!r} is given twice in one table{node.start_mark}; keep one")
            return super().construct_mapping(node, deep=deep)

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
    )
    return Loader


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
