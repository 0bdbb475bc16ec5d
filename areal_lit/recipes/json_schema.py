"""The schema of recipes as JSON Schema (draft 2020-12), for editors: from the same signatures that the parser reads.

What it rejects, the parser rejects; rules between fields are ``validate``'s.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from typing import Any, Literal

from areal_lit.plugins import Plugin, PluginError, Plugins, kind_of
from areal_lit.recipes.schema import Parameter, admits_null, members, parameters_of, shape_of

Schema = dict[str, Any]

BASE: Schema = {
    "type": ["string", "null"],
    "description": "a recipe by name, or a file beside this one, laid under this",
}
DOTTED: Schema = {"pattern": "[.:]", "description": "dotted path of a class: package.module.Class"}
# YAML gives quoted numbers and switches as text, and the parser reads them all the same
PLAIN: Mapping[Any, Schema] = {
    str: {"type": "string"},
    bool: {
        "type": ["boolean", "string"],
        "pattern": "^([Tt]rue|TRUE|[Ff]alse|FALSE|[Yy]es|YES|[Nn]o|NO|[Oo]n|ON|[Oo]ff|OFF)$",
    },
    int: {"type": ["integer", "string"], "pattern": "^[-+]?(0x[0-9a-fA-F_]+|0b[01_]+|[0-9][0-9_]*)$"},
    float: {
        "type": ["number", "string"],
        "pattern": r"^[-+]?(\.?[0-9][0-9_.]*([eE][-+]?[0-9]+)?|\.(inf|Inf|INF|nan|NaN|NAN))$",
    },
}


def json_schema(cls: type, plugins: Plugins | None = None) -> Schema:
    """The schema of a table of a class's arguments, with every installed plugin as a component that may stand in it.

    Args:
        cls: the Trainer.
        plugins: those installed, by default. Of one that cannot be imported only the name is known.
    """
    plugins = plugins or Plugins.discover()
    whole, over_base = _Writer(plugins), _Writer(plugins, is_over_base=True)
    table, partial = whole.table(cls), over_base.table(cls)
    partial["properties"] = {"base": BASE, **partial["properties"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"areal-lit recipe ({metadata.version('areal-lit')})",
        "if": {"required": ["base"]},
        "then": partial,
        "else": table,
        "$defs": dict(sorted({**whole.definitions, **over_base.definitions}.items())),
    }


class _Writer:
    """Writes the schema of one type after the other; what is named more than once goes to ``definitions``.

    Args:
        is_over_base: of a recipe with a base, which may lack what the base says: no key is required.
    """

    def __init__(self, plugins: Plugins, *, is_over_base: bool = False) -> None:
        self.definitions: dict[str, Schema] = {}
        self._plugins = plugins
        self._is_over_base = is_over_base

    def table(self, cls: type) -> Schema:
        """The arguments of a class."""
        parameters = parameters_of(cls)
        return {
            "type": "object",
            "properties": {name: self._key(parameter) for name, parameter in parameters.items()},
            "required": self._required(name for name, parameter in parameters.items() if parameter.is_required),
            "additionalProperties": False,
        }

    def _required(self, names: Iterable[str]) -> list[str]:
        return [] if self._is_over_base else list(names)

    def _reference(self, name: str) -> str:
        return f"{name} over a base" if self._is_over_base else name

    def _key(self, parameter: Parameter) -> Schema:
        schema = dict(self._value(parameter.hint))
        if parameter.text:
            schema["description"] = parameter.text
        if not parameter.is_required:
            with suppress(TypeError, ValueError):  # an object, or infinity: no JSON, so no default is shown
                schema["default"] = json.loads(
                    json.dumps(parameter.default, allow_nan=False, default=dataclasses.asdict)
                )
        return schema

    def _value(self, hint: Any) -> Schema:
        choices = [self._member(member) for member in members(hint)]
        if {} in choices:
            return {}
        if admits_null(hint):
            choices.append({"type": "null"})
        return choices[0] if len(choices) == 1 else {"anyOf": choices}

    def _member(self, hint: Any) -> Schema:
        """One type of a union; empty for one of which nothing is known."""
        shape = shape_of(hint, "component")
        if shape.form == "component":
            return self._component(kind_of(shape.hint))
        if shape.form == "group":
            return self._defined(f"{shape.hint.__module__}.{shape.hint.__qualname__}", shape.hint)
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is Literal:
            return {"enum": list(arguments)}
        if isinstance(origin, type) and issubclass(origin, Mapping) and arguments:
            return {"type": "object", "additionalProperties": self._value(arguments[-1])}
        is_list = isinstance(origin, type) and issubclass(origin, Sequence | set | frozenset)
        if is_list and (len(arguments) == 1 or arguments[1:] == (Ellipsis,)):
            return {"type": "array", "items": self._value(arguments[0])}
        return {"type": "null"} if hint is types.NoneType else PLAIN.get(hint, {})

    def _defined(self, name: str, cls: type) -> Schema:
        name = self._reference(name)
        if name not in self.definitions:
            self.definitions[name] = {}  # met again on the way, in a class that takes its own kind
            self.definitions[name] = {"description": _headline(cls), **self.table(cls)}
        return {"$ref": f"#/$defs/{name}"}

    def _component(self, kind: str) -> Schema:
        """A component of a kind: a name, or ``class_path`` with the arguments of that class."""
        if not kind:
            return {}
        name = self._reference(kind)
        if name not in self.definitions:
            self.definitions[name] = {}
            self.definitions[name] = self._named(kind)
        return {"$ref": f"#/$defs/{name}"}

    def _named(self, kind: str) -> Schema:
        known = [self._plugin(plugin) for plugin in self._plugins if plugin.kind == kind]
        by_itself = [choice for choice, _, needs_arguments in known if not needs_arguments]
        return {
            "anyOf": [
                {"type": "string", "anyOf": [*by_itself, DOTTED]},
                {
                    "type": "object",
                    "properties": {
                        "class_path": {"type": "string", "anyOf": [*(choice for choice, _, _ in known), DOTTED]},
                        "init_args": {"type": ["object", "null"]},
                    },
                    "required": self._required(["class_path"]),
                    "additionalProperties": False,
                    "allOf": [rule for _, rule, _ in known if rule],
                },
            ]
        }

    def _plugin(self, plugin: Plugin) -> tuple[Schema, Schema, bool]:
        """The choice of a plugin by name, the rule for its arguments, and whether it needs any."""
        choice: Schema = {"const": plugin.name}
        try:
            cls = self._plugins.load(plugin.kind, plugin.path)
        except PluginError:
            return choice, {}, False
        choice["description"] = _headline(cls)
        needs_arguments = bool(self._required(n for n, given in parameters_of(cls).items() if given.is_required))
        arguments = self._defined(plugin.path, cls)
        then: Schema = {"properties": {"init_args": arguments}, "required": ["init_args"]}
        if not needs_arguments:
            then = {"properties": {"init_args": {"anyOf": [arguments, {"type": "null"}]}}}
        names = {"enum": [plugin.name, plugin.path, plugin.target]}
        is_it = {"properties": {"class_path": names}, "required": ["class_path"]}
        return choice, {"if": is_it, "then": then}, needs_arguments


def _headline(cls: type) -> str:
    return (cls.__doc__ or "").strip().partition("\n")[0]
