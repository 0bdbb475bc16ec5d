"""Plain values of a recipe: merged where they are tables, checked against their type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from areal_lit.recipes.schema import admits_null, describe

if TYPE_CHECKING:
    from areal_lit.recipes.resolver import Assignment


def leaf_value(hint: Any, assignments: Sequence[Assignment], path: str, problems: list[str]) -> Any:
    """What the assignments say together; a value that does not fit is added to ``problems``."""
    value: Any = None
    text: str | None = None
    for said in assignments:
        text = said.text
        if not said.keys:
            is_table = isinstance(value, Mapping) and isinstance(said.value, Mapping)
            value = _merged(value, said.value) if is_table else said.value
        elif value is None or isinstance(value, Mapping):
            value, text = _merged(value or {}, _nested(said.keys, said.value)), None
        else:
            problems.append(f"{path}.{'.'.join(said.keys)}: {path} is {value!r}, which takes no further keys")
    for candidate in (value, text):
        if (candidate is not None or candidate is value) and _fits(hint, candidate):
            return candidate
    if not any(problem.startswith(f"{path}.") for problem in problems):
        problems.append(f"{path} must be {describe(hint)}, got {value!r}")
    return value


def _merged(base: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Two tables as one; the later wins."""
    merged = dict(base)
    for key, value in later.items():
        both = isinstance(merged.get(key), Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _nested(keys: Sequence[str], value: Any) -> dict[str, Any]:
    for key in reversed(keys):
        value = {key: value}
    return dict(value)


def _fits(hint: Any, value: Any) -> bool:
    """Whether jsonargparse takes the value at this type."""
    from jsonargparse import ArgumentError, ArgumentParser

    if hint is Any or isinstance(hint, str):
        return True
    if value is None:
        return admits_null(hint)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=hint)
    try:
        parser.parse_object({"value": value})
    except (ArgumentError, OverflowError):  # the latter: an integer beyond any float
        return False
    return True
