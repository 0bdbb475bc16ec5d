"""Recipes as files: found by path or name, read as YAML, each after the base it is laid over."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from areal_lit.names import closest

SHIPPED = "areal_lit_recipes"
"""The package whose YAML files are found by name."""


class RecipeError(ValueError):
    """A recipe is wrong; the message lists everything found, each with the way out.

    Args:
        problems: what was found; one may have several lines, as a traceback has.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def layers(
    config: str | Path | Mapping[str, Any], *, directory: Path = Path(), above: tuple[Any, ...] = ()
) -> list[dict[str, Any]]:
    """The tables that a recipe consists of, its bases' first; of two for one key the later wins.

    Args:
        config: a file, the name of a shipped recipe, or a dictionary; ``base`` in it is a file beside it, or a name.
        directory: where a file is looked for.
        above: the recipes that are laid over this one.

    Raises:
        RecipeError: naming the file, of what cannot be found or read, or is its own base.
    """
    found = None if isinstance(config, Mapping) else find(config, directory=directory)
    if found in above:
        raise RecipeError(f"{config} is its own base; remove one `base:` of the circle")
    table = dict(config) if isinstance(config, Mapping) else _table(found, config)
    base = table.pop("base", None)
    if base is None:
        return [table]
    where = "base" if found is None else f"{config}: base"
    if not isinstance(base, str):
        raise RecipeError(f"{where} must be a file or the name of a shipped recipe, got {base!r}")
    beside = found.parent if isinstance(found, Path) else Path()
    try:
        return [*layers(base, directory=beside, above=(*above, found)), table]
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from error


def read(config: str | Path) -> dict[str, Any]:
    """The table in a YAML file, or in a shipped recipe named without path and suffix; without what its base says."""
    return _table(find(config), config)


def find(config: str | Path, *, directory: Path = Path()) -> Any:
    """The file behind a path, seen from a directory, or behind the name of a shipped recipe."""
    # OSError: longer than a name may be, or in a directory that may not be read; RuntimeError: ~ of nobody
    try:
        path = directory / Path(config).expanduser()
        if path.is_file():
            return path.resolve()
    except (OSError, RuntimeError) as error:
        raise RecipeError(f"{config!s:.200} cannot be looked for: {error.args[-1]}; name another file") from error
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


def ready_recipes(name: str) -> str:
    """A clause that names the shipped recipes of an algorithm; empty where there are none."""
    found = [recipe for recipe in reversed(shipped()) if recipe.partition("_")[2] == name]
    return f"; ready: {' and '.join(found)} (`areal-lit recipes show {found[0]}`)" if found else ""


def _table(file: Any, name: str | Path) -> dict[str, Any]:
    """What a file holds."""
    import yaml

    try:
        value = yaml.load(file.read_text(encoding="utf-8"), Loader=_loader())
    except RecursionError as error:
        raise RecipeError(f"{name} is nested too deeply for a recipe") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{name} is not UTF-8 text: {error}; save it as UTF-8") from error
    except OSError as error:
        raise RecipeError(f"{name} cannot be read: {error.strerror}; mend its permissions, or name another") from error
    # ValueError: a number of thousands of digits, or a date that does not exist
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(f"{name} is no valid YAML: {error}") from error
    if not isinstance(value, dict):
        raise RecipeError(f"{name} must hold a table of the Trainer's arguments, got {type(value).__name__}")
    return value


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
