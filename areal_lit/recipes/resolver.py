"""Several configs and command-line overrides become one checked recipe, in one pass along the schema.

Everything a recipe says is an assignment: ``policy.optimizer.lr 1e-4`` is one, a whole YAML file is one at the root.
They are kept in order of their source; of two for the same place the later wins, and tables merge. On the way short
names become dotted paths, unknown keys are found at any depth, and what a changed ``class_path`` leaves is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from areal_lit.names import closest, nearest
from areal_lit.plugins import PluginError, Plugins, kind_of
from areal_lit.plugins.distributions import dotted_path
from areal_lit.recipes.files import ready_recipes
from areal_lit.recipes.leaf import leaf_value
from areal_lit.recipes.schema import Parameter, Shape, describe, parameters_of, shape_of

MISSING: Any = object()
Source = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One thing a recipe says.

    Args:
        keys: where, relative to the node that is being resolved.
        source: position among the configs, and of the table among the config's bases; all overrides share the last,
            so that an argument may be given before the class it belongs to.
        text: as written on the command line, for keys that take text.
    """

    keys: tuple[str, ...]
    value: Any
    source: Source
    text: str | None = None

    def below(self) -> Assignment:
        """The same, seen from the node one key further down."""
        return replace(self, keys=self.keys[1:])

    def items(self) -> list[Assignment]:
        """A table at this node as one assignment per key."""
        return [replace(self, keys=(str(key),), value=value, text=None) for key, value in self.value.items()]


class Resolver:
    """Resolves one recipe. ``problems`` and ``notes`` are filled on the way; nothing is raised."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self.problems: list[str] = []
        self.notes: list[str] = []

    def resolve(self, hint: Any, assignments: Sequence[Assignment], path: str) -> Any:
        """The value at a place, or MISSING after a problem."""
        nulls = [index for index, said in enumerate(assignments) if not said.keys and said.value is None]
        if nulls:
            if nulls[-1] == len(assignments) - 1:
                return leaf_value(hint, assignments[-1:], path, self.problems)
            assignments = assignments[nulls[-1] + 1 :]
        shape = shape_of(hint, _wanted(assignments))
        if shape.form == "component":
            return self._component(shape.hint, assignments, path)
        if shape.form == "group":
            return self.group(shape.hint, assignments, path)
        if shape.form == "mapping":
            return self._mapping(shape, assignments, path)
        if shape.form == "list":
            return self._list(shape, assignments, path)
        return leaf_value(hint, assignments, path, self.problems)

    def group(self, cls: type, assignments: Sequence[Assignment], path: str) -> Any:
        """A table of the arguments of one fixed class."""
        keyed = self._keyed(assignments, path, f"the keys of {cls.__name__}: {', '.join(parameters_of(cls))}")
        return self._arguments(cls, keyed, path)

    def _arguments(
        self, cls: type, keyed: Sequence[Assignment], path: str, *, since: Source = (0, 0)
    ) -> dict[str, Any]:
        """The arguments of a class. What was said before ``since`` was said about another class, and is dropped."""
        parameters = parameters_of(cls)
        known = parameters if path else [*parameters, "base"]
        values: dict[str, Any] = {}
        for name, all_said in _grouped(keyed).items():
            full = f"{path}.{name}" if path else name
            said = [item for item in all_said if item.source >= since]
            is_said_anew = any(len(item.keys) == 1 for item in said)
            # a recipe itself knows what its base is
            if not is_said_anew and any(item.source[0] < since[0] for item in all_said):
                self.notes.append(f"{full} is dropped: it was said of another class than {cls.__name__}")
            if said and name in parameters:
                values[name] = self.resolve(parameters[name].hint, [item.below() for item in said], full)
            elif said:
                self.problems.append(f"{full}: {cls.__name__} has no such key; {closest(name, known)}")
        # what a base would have said is not missing
        is_base_misspelt = not path and any(nearest(said.keys[0], known) == "base" for said in keyed)
        for name in () if is_base_misspelt else _missing(parameters, values):
            full = f"{path}.{name}" if path else name
            ready = ready_recipes(self._plugins.short(dotted_path(cls)))
            self.problems.append(f"{full} is required: {self._expected(parameters[name].hint)}{ready}")
        return {name: value for name, value in values.items() if value is not MISSING}

    def _expected(self, hint: Any) -> str:
        shape = shape_of(hint, "component")
        if shape.form == "component" and (kind := kind_of(shape.hint)):
            return f"{kind} by name, one of {', '.join(self._plugins.names(kind))}, or by dotted path"
        if shape.form == "group":
            return f"the keys of {shape.hint.__name__}: {', '.join(parameters_of(shape.hint))}"
        return describe(hint)

    def _component(self, base: type, assignments: Sequence[Assignment], path: str) -> Any:
        selections, keyed = self._selections(assignments, path)
        if not selections:
            if assignments:
                self.problems.append(f"{path} names no class_path; give {self._expected(base)}")
            return MISSING
        kind = kind_of(base)
        dotted = [self._dotted(kind, name) for _, name in selections]
        try:
            cls = self._plugins.load(kind, selections[-1][1], base=base)
        except PluginError as error:
            self.problems.append(f"{path}: {error}")
            return MISSING
        since = next((selections[i][0] for i in range(len(dotted) - 1, 0, -1) if dotted[i - 1] != dotted[i]), (0, 0))
        return {"class_path": dotted[-1], "init_args": self._arguments(cls, keyed, f"{path}.init_args", since=since)}

    def _selections(
        self, assignments: Sequence[Assignment], path: str
    ) -> tuple[list[tuple[Source, str]], list[Assignment]]:
        """Classes named for a component, each with its source, and what was said about its arguments."""
        selections: list[tuple[Source, str]] = []
        arguments: list[Assignment] = []
        pending = list(assignments)
        while pending:
            said = pending.pop(0)
            if not said.keys and isinstance(said.value, Mapping):
                pending[:0] = self._table(said, path)
            elif said.keys == ("class_path",) or not said.keys:
                if isinstance(said.value, str):
                    selections.append((said.source, said.value))
                else:
                    self.problems.append(f"{path} must be a name or class_path and init_args, got {said.value!r}")
            elif said.keys == ("init_args",) and isinstance(said.value, Mapping):
                arguments += said.items()
            elif said.keys == ("init_args",) and said.value is not None:
                self.problems.append(f"{path}.init_args must be a table of arguments, got {said.value!r}")
            elif said.keys[0] == "init_args":
                arguments += [said.below()] if len(said.keys) > 1 else []
            else:
                arguments.append(said)
        return selections, arguments

    def _table(self, said: Assignment, path: str) -> list[Assignment]:
        """``class_path`` and ``init_args`` of a component in a config, and nothing else."""
        for key in said.value:
            if key not in ("class_path", "init_args"):
                self.problems.append(
                    f"{path}.{key}: a component takes class_path and init_args; did you mean {path}.init_args.{key}?"
                )
        return [item for item in said.items() if item.keys[0] in ("class_path", "init_args")]

    def _dotted(self, kind: str, name: str) -> str:
        try:
            return self._plugins.dotted(kind, name)
        except PluginError:
            return name

    def _mapping(self, shape: Shape, assignments: Sequence[Assignment], path: str) -> Any:
        keyed = self._keyed(assignments, path, "a table of named values")
        values = {
            name: self.resolve(shape.hint, [item.below() for item in said], f"{path}.{name}")
            for name, said in _grouped(keyed).items()
        }
        return {name: value for name, value in values.items() if value is not MISSING}

    def _list(self, shape: Shape, assignments: Sequence[Assignment], path: str) -> Any:
        """The last list given, with overrides of its items by position (``callbacks.0.every 5``)."""
        items: list[list[Assignment]] = []
        for said in assignments:
            if not said.keys and isinstance(said.value, (list, tuple)):
                items = [[replace(said, value=value, text=None)] for value in said.value]
            elif not said.keys:
                self.problems.append(f"{path} must be a list, got {said.value!r}; write [{said.value}]")
        for said in (said for said in assignments if said.keys):
            if said.keys[0].isdecimal() and int(said.keys[0]) < len(items):
                items[int(said.keys[0])].append(said.below())
            else:
                self.problems.append(f"{path}.{said.keys[0]}: the list has {len(items)} items, counted from 0")
        values = [self.resolve(shape.hint, said, f"{path}.{index}") for index, said in enumerate(items)]
        return [value for value in values if value is not MISSING]

    def _keyed(self, assignments: Sequence[Assignment], path: str, expected: str) -> list[Assignment]:
        """Assignments with at least one key: tables taken apart, anything else a problem."""
        keyed: list[Assignment] = []
        for said in assignments:
            if said.keys:
                keyed.append(said)
            elif isinstance(said.value, Mapping):
                keyed += said.items()
            else:
                self.problems.append(f"{path or 'the recipe'} must be a table, got {said.value!r}; it takes {expected}")
        return keyed


def _wanted(assignments: Sequence[Assignment]) -> Literal["text", "sequence", "table", "component"]:
    """The form of what is said about a place."""
    keys = {said.keys[0] for said in assignments if said.keys}
    whole = [said.value for said in assignments if not said.keys]
    tables = [value for value in whole if isinstance(value, Mapping)]
    if "class_path" in keys or any("class_path" in table for table in tables):
        return "component"
    if any(isinstance(value, (list, tuple)) for value in whole):
        return "sequence"
    if whole and not tables:
        return "text"
    return "table"


def _grouped(keyed: Sequence[Assignment]) -> dict[str, list[Assignment]]:
    """By first key, in order of first appearance."""
    groups: dict[str, list[Assignment]] = {}
    for said in keyed:
        groups.setdefault(said.keys[0], []).append(said)
    return groups


def _missing(parameters: Mapping[str, Parameter], values: Mapping[str, Any]) -> list[str]:
    return [name for name, parameter in parameters.items() if parameter.is_required and name not in values]
