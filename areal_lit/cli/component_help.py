"""``--reward.help``: which components a key takes, and the arguments of one."""

from __future__ import annotations

import inspect

from areal_lit.cli.listing import first_line
from areal_lit.names import closest
from areal_lit.plugins import Plugins, kind_of
from areal_lit.recipe_schema import parameters_of, shape_of
from areal_lit.recipes import RecipeError, create_parser


def print_component_help(key: str, name: str) -> None:
    """Print help for the component at a dotted key; without a name, the list of what the key takes."""
    base = _class_at(key)
    kind = kind_of(base)
    plugins = Plugins.discover()
    if not kind:
        raise RecipeError(f"--{key}.help: {key} is no component; `areal-lit fit --help` lists its keys")
    if not name:
        print(f"{key} takes a {kind}; --{key}.help NAME shows its arguments:")
        for plugin in plugins:
            if plugin.kind == kind:
                print(f"  {plugin.name:<20} {first_line(plugin)}")
        return
    cls = plugins.load(kind, name, base=base)
    print(f"{kind} {name} ({cls.__module__}.{cls.__qualname__})\n")
    print(f"{inspect.cleandoc(cls.__doc__ or '')}\n")
    print(create_parser(cls, prog=f"--{key}").format_help().partition("\n\n")[2].rstrip())


def _class_at(key: str) -> type:
    """The class that stands at a dotted key of a recipe."""
    from areal_lit.trainer import Trainer

    hint: object = Trainer
    path = ""
    for part in key.split("."):
        found = hint if path == "" else shape_of(hint, "component").hint
        known = parameters_of(found) if isinstance(found, type) else {}
        if part not in known:
            raise RecipeError(f"--{key}.help: {path or 'a recipe'} has no key {part!r}; {closest(part, known)}")
        hint = known[part].hint
        path = f"{path}.{part}" if path else part
    shape = shape_of(hint, "component")
    while shape.form in ("list", "mapping"):
        shape = shape_of(shape.hint, "component")
    return shape.hint if isinstance(shape.hint, type) else object
