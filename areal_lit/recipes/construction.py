"""What every constructor of a recipe says against its arguments.

jsonargparse constructs from the inside out and stops at the first that refuses. Here each one is tried, so that the
first mistake of every component is told.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from areal_lit.contracts import Component
from areal_lit.plugins.distributions import distribution_of, dotted_path
from areal_lit.recipes.schema import parameters_of, shape_of

_REFUSED: Any = object()
_FRAMES = 2
"""Of a traceback, the last so many."""


def refusals(cls: type, arguments: Mapping[str, Any]) -> list[str]:
    """A sentence per constructor that refuses, with its path; empty when everything can be constructed.

    Args:
        arguments: of ``cls``, as jsonargparse parsed them.
    """
    problems: list[str] = []
    _construct(cls, arguments, "", problems)
    return problems


def _construct(cls: type, arguments: Mapping[str, Any], path: str, problems: list[str]) -> Any:
    """The object, or _REFUSED once it or a part of it is refused."""
    values = {}
    for name, parameter in parameters_of(cls).items():
        if name in arguments:
            values[name] = _value(parameter.hint, arguments[name], f"{path}.{name}" if path else name, problems)
    if any(value is _REFUSED for value in values.values()):
        return _REFUSED
    try:
        return cls(**values)
    except ValueError as error:
        problems.append(_placed(str(error), path) if str(error) else _crashed(cls, error, path))
        return _REFUSED
    # a plugin's constructor may raise anything, sys.exit() included; it is reported, with its traceback
    except (Exception, SystemExit) as error:  # noqa: BLE001
        problems.append(_crashed(cls, error, path))
        return _REFUSED


def _value(hint: Any, value: Any, path: str, problems: list[str]) -> Any:
    from jsonargparse import Namespace

    table = vars(value) if isinstance(value, Namespace) else value
    if isinstance(table, Mapping) and isinstance(table.get("class_path"), str):
        module, _, name = table["class_path"].rpartition(".")
        arguments = vars(table["init_args"]) if "init_args" in table else {}
        return _construct(getattr(import_module(module), name), arguments, path, problems)
    shape = shape_of(hint, "sequence" if isinstance(table, list | tuple) else "table")
    if shape.form == "group" and isinstance(table, Mapping):
        return _construct(shape.hint, table, path, problems)
    if shape.form == "mapping" and isinstance(table, Mapping):
        items = {key: _value(shape.hint, item, f"{path}.{key}", problems) for key, item in table.items()}
        return _REFUSED if any(item is _REFUSED for item in items.values()) else items
    if shape.form == "list" and isinstance(table, list | tuple):
        parts = [_value(shape.hint, item, f"{path}.{index}", problems) for index, item in enumerate(table)]
        return _REFUSED if any(part is _REFUSED for part in parts) else parts
    return value


def _crashed(cls: type, error: BaseException, path: str) -> str:
    """What a constructor failed of, that is no refusal of its arguments: where, in which class, and why."""
    own = traceback.extract_tb(error.__traceback__)[1:]  # without the call from here
    frames = "".join(traceback.format_list(own[-_FRAMES:])).rstrip()
    name = dotted_path(cls)
    what = "".join(traceback.format_exception_only(error)).strip()
    key = f"{path}.init_args" if issubclass(cls, Component) else path or "the recipe"
    return (
        f"{key}: the constructor of {name} ({distribution_of(name)}) raised {what}; give it other "
        f"arguments, or mend the class\n{frames}"
    )


def _placed(message: str, path: str) -> str:
    """A constructor's sentence with the path of what it constructs, of which the sentence may know the end."""
    outer, _, own = path.rpartition(".")
    if own and message.startswith(f"{own}."):
        return f"{outer}.{message}" if outer else message
    return f"{path}: {message}" if path else message
