"""The help of recipes: every key with its type, default and docstring; ``--reward.help`` for what a key takes."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from areal_lit.cli.listing import first_line
from areal_lit.names import closest
from areal_lit.plugins import Plugins, kind_of
from areal_lit.recipes import RecipeError
from areal_lit.recipes.schema import Parameter, Shape, describe, members, parameters_of, shape_of


def key_lines(cls: type, prefix: str = "", plugins: Plugins | None = None, *, default: Any = None) -> Iterator[str]:
    """A few lines per key of a class, those of its groups below them.

    Args:
        default: what stands at the place of the class where a recipe says nothing; an object of the class has its own
            values of the keys.
    """
    plugins = plugins or Plugins.discover()
    for name, parameter in _keys(cls, default).items():
        shape = _innermost(parameter.hint)
        yield f"  --{prefix}{name}  {_value(parameter, shape, plugins)}"
        if parameter.text:
            yield textwrap.indent(textwrap.fill(parameter.text, width=100), " " * 8)
        is_repeated_role = not parameter.is_required and prefix == "" and shape.hint in _required_classes(cls)
        if is_repeated_role:
            yield f"        keys as those of {_required_classes(cls)[shape.hint]}"
        elif shape.form == "group" and shape_of(parameter.hint, "component").form == "group":
            yield from key_lines(shape.hint, f"{prefix}{name}.", plugins, default=parameter.default)


def print_component_help(key: str, name: str) -> None:
    """Print what a dotted key takes; with a component's name, that component's arguments."""
    plugins = Plugins.discover()
    found = _parameter_at(key)
    shape = _innermost(found.hint)
    if shape.form == "group":
        print("\n".join(key_lines(shape.hint, f"{key}.", plugins, default=found.default)))
        return
    kind = kind_of(shape.hint) if isinstance(shape.hint, type) else ""
    if not kind:
        raise RecipeError(
            f"--{key}.help: {key} is a plain value, {describe(shape.hint)}; `areal-lit fit --help` says more"
        )
    if not name:
        article = "an" if kind[0] in "aeiou" else "a"
        print(f"{key} takes {article} {kind}; --{key}.help NAME shows its arguments:")
        for plugin in plugins:
            if plugin.kind == kind:
                print(f"  {plugin.name:<20} {first_line(plugin)}")
        return
    cls = plugins.load(kind, name, base=shape.hint)
    print(f"{kind} {name} ({cls.__module__}.{cls.__qualname__})\n")
    print(inspect.cleandoc(cls.__doc__ or "").partition("\nArgs:")[0].rstrip() + "\n")
    print("\n".join(key_lines(cls, f"{key}.", plugins)))


def _required_classes(cls: type) -> dict[Any, str]:
    """Classes of a class's required keys: an optional key of the same class needs no second listing."""
    return {_innermost(p.hint).hint: name for name, p in parameters_of(cls).items() if p.is_required}


def _innermost(hint: Any) -> Shape:
    """What a key takes, or what the items of its list or mapping are."""
    shape = shape_of(hint, "component")
    while shape.form in ("list", "mapping"):
        shape = shape_of(shape.hint, "component")
    return shape


def _keys(cls: type, default: Any) -> Mapping[str, Parameter]:
    """The keys of a class with what a run would use where a recipe says nothing."""
    known = parameters_of(cls)
    if not isinstance(default, cls):
        return known
    return {
        name: replace(parameter, is_required=False, default=getattr(default, name, parameter.default))
        for name, parameter in known.items()
    }


def _value(parameter: Parameter, shape: Shape, plugins: Plugins) -> str:
    if shape.form == "component" and (kind := kind_of(shape.hint)):
        value = f"{kind}: {', '.join(plugins.names(kind))}"
    elif shape.form == "group":
        plain = [describe(member) for member in members(parameter.hint) if shape_of(member, "text").form == "leaf"]
        value = " or ".join([*plain, "the keys below"]) if plain else ""
    else:
        value = describe(parameter.hint)
    default = "required" if parameter.is_required else f"default {_plain(parameter.default)}"
    if shape.form == "group" and isinstance(parameter.default, shape.hint):
        default = "default as below"
    return f"{value} ({default})".strip()


def _plain(default: Any) -> Any:
    names = {None: "null", True: "true", False: "false"}
    return names.get(default, default) if isinstance(default, (bool, type(None))) else default


def _parameter_at(key: str) -> Parameter:
    """What stands at a dotted key of a recipe."""
    from areal_lit.trainer import Trainer

    known, path = parameters_of(Trainer), "a recipe"
    for part in key.split("."):
        if part not in known:
            raise RecipeError(f"--{key}.help: {path} has no key {part!r}; {closest(part, known)}")
        found = known[part]
        shape = _innermost(found.hint)
        known, path = _keys(shape.hint, found.default) if shape.form == "group" else {}, part
    return found
