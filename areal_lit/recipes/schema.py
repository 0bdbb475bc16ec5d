"""The schema of a recipe, read off constructors: which keys a class takes, and what may stand at each."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union

from areal_lit.contracts import Component

Form = Literal["component", "group", "list", "mapping", "leaf"]

_UNTYPED = "of the type that the constructor annotates, and it annotates none: the class must, as in `name: float`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One key of a constructor.

    Args:
        text: what the class's docstring says of it.
    """

    hint: Any
    is_required: bool
    default: Any = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What stands at a place of a recipe.

    Args:
        form: ``component`` (``class_path`` and ``init_args``), ``group`` (the keys of one class), ``list`` or
            ``mapping`` of such, or ``leaf`` (a plain value).
        hint: the class of a component or group; the type of the items of a list or mapping; the type of a leaf.
    """

    form: Form
    hint: Any


@cache
def parameters_of(cls: type) -> Mapping[str, Parameter]:
    """The keys a class takes, those it passes on through ``**kwargs`` included.

    jsonargparse's own resolver is asked, so that this schema and its parser cannot disagree.
    """
    from jsonargparse._parameter_resolvers import get_signature_parameters

    return {
        found.name: Parameter(
            hint=found.annotation,
            is_required=found.default is inspect.Parameter.empty,
            default=found.default,
            text=found.doc or "",
        )
        for found in get_signature_parameters(cls, None, logger=False)
    }


def shape_of(hint: Any, wanted: Literal["text", "sequence", "table", "component"]) -> Shape:
    """How to read a type; ``wanted``, the form of what the recipe says there, decides between members of a union."""
    shapes = [_shape(member) for member in members(hint)]
    order: Mapping[str, Sequence[Form]] = {
        "component": ("component", "group", "mapping", "list"),
        "table": ("mapping", "group", "component", "list"),
        "sequence": ("list", "component", "group", "mapping"),
        "text": ("component", "leaf", "group", "list", "mapping"),
    }
    for form in order[wanted]:
        for shape in shapes:
            if shape.form == form and form != "leaf":
                return shape
            if form == "leaf" and shape.form == "leaf":
                return Shape(form="leaf", hint=hint)
    return Shape(form="leaf", hint=hint)


def members(hint: Any) -> list[Any]:
    """The types of a union, null left out; the type itself where it is none."""
    if typing.get_origin(hint) is Annotated:
        return members(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (Union, types.UnionType):
        return [inner for member in typing.get_args(hint) if member is not types.NoneType for inner in members(member)]
    return [hint]


def _shape(hint: Any) -> Shape:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and origin is None:
        if issubclass(hint, Component):
            return Shape(form="component", hint=hint)
        if dataclasses.is_dataclass(hint) or getattr(hint, "__final__", False):
            return Shape(form="group", hint=hint)
        return Shape(form="leaf", hint=hint)
    is_items = isinstance(origin, type) and arguments and not issubclass(origin, (str, bytes))
    if is_items and issubclass(origin, Mapping) and _holds_classes(arguments[-1]):
        return Shape(form="mapping", hint=arguments[-1])
    if is_items and issubclass(origin, Sequence) and _holds_classes(arguments[0]):
        return Shape(form="list", hint=arguments[0])
    return Shape(form="leaf", hint=hint)


def _holds_classes(hint: Any) -> bool:
    return any(_shape(member).form != "leaf" for member in members(hint))


def admits_null(hint: Any) -> bool:
    """Whether null may stand at a type."""
    if typing.get_origin(hint) is Annotated:
        return admits_null(typing.get_args(hint)[0])
    is_union = typing.get_origin(hint) in (Union, types.UnionType)
    return hint in (None, types.NoneType) or (is_union and any(admits_null(member) for member in typing.get_args(hint)))


def describe(hint: Any) -> str:
    """A type in words, for errors: ``int or null``, ``one of 'constant', 'linear'``."""
    words = []
    for member in members(hint):
        if typing.get_origin(member) is Literal:
            words.append("one of " + ", ".join(repr(value) for value in typing.get_args(member)))
        elif member is inspect.Parameter.empty:
            words.append(_UNTYPED)
        elif isinstance(member, type) and typing.get_origin(member) is None:
            words.append(
                {"str": "text", "int": "an integer", "float": "a number", "bool": "true or false"}.get(
                    member.__name__, member.__name__
                )
            )
        else:
            words.append(_described_collection(member))
    if admits_null(hint):
        words.append("null")
    return " or ".join(words)


def _described_collection(hint: Any) -> str:
    if typing.get_origin(hint) is Callable:
        return "a function"
    origin, items = typing.get_origin(hint), [item for item in typing.get_args(hint) if item is not Ellipsis]
    for base, word, item in ((Mapping, "a table", items[-1:]), (Sequence, "a list", items[:1])):
        if isinstance(origin, type) and issubclass(origin, base) and item:
            return word if item == [Any] else f"{word} of {describe(item[0])}"
    return str(hint).replace("typing.", "").replace("collections.abc.", "")
