"""The help of recipes: every key with its type, default and docstring; ``--reward.help`` for what a key takes."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from areal_lit.cli.listing import first_line
from areal_lit.names import closest
from areal_lit.plugins import Plugins, kind_of
from areal_lit.recipes import RecipeError
from areal_lit.recipes.schema import Parameter, Shape, describe, parameters_of, shape_of


def key_lines(cls: type, prefix: str = "", plugins: Plugins | None = None) -> Iterator[str]:
    """A few lines per key of a class, those of its groups below them."""
    plugins = plugins or Plugins.discover()
    for name, parameter in parameters_of(cls).items():
        shape = _innermost(parameter.hint)
        yield f"  --{prefix}{name}  {_value(parameter, shape, plugins)}"
        if parameter.text:
            yield textwrap.indent(textwrap.fill(parameter.text, width=100), " " * 8)
        is_repeated_role = not parameter.is_required and prefix == "" and shape.hint in _required_classes(cls)
        if is_repeated_role:
            yield f"        keys as those of {_required_classes(cls)[shape.hint]}"
        elif shape.form == "group" and shape_of(parameter.hint, "component").form == "group":
            yield from key_lines(shape.hint, f"{prefix}{name}.", plugins)


def print_component_help(key: str, name: str) -> None:
    """Print what a dotted key takes; with a component's name, that component's arguments."""
    plugins = Plugins.discover()
    shape = _shape_at(key)
    if shape.form == "group":
        print("\n".join(key_lines(shape.hint, f"{key}.", plugins)))
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


def _value(parameter: Parameter, shape: Shape, plugins: Plugins) -> str:
    if shape.form == "component" and (kind := kind_of(shape.hint)):
        value = f"{kind}: {', '.join(plugins.names(kind))}"
    else:
        value = "" if shape.form == "group" else describe(parameter.hint)
    default = "required" if parameter.is_required else f"default {_plain(parameter.default)}"
    if shape.form == "group" and not parameter.is_required and parameter.default is not None:
        default = "default as below"
    return f"{value} ({default})".strip()


def _plain(default: Any) -> Any:
    names = {None: "null", True: "true", False: "false"}
    return names.get(default, default) if isinstance(default, (bool, type(None))) else default


def _shape_at(key: str) -> Shape:
    """What stands at a dotted key of a recipe."""
    from areal_lit.trainer import Trainer

    shape = Shape(form="group", hint=Trainer)
    path = "a recipe"
    for part in key.split("."):
        known = parameters_of(shape.hint) if shape.form == "group" else {}
        if part not in known:
            raise RecipeError(f"--{key}.help: {path} has no key {part!r}; {closest(part, known)}")
        shape = _innermost(known[part].hint)
        path = part
    return shape
