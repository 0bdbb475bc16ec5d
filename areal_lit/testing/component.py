"""What every component promises: it pickles before ``setup``, and its state survives JSON."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import TypeVar

from areal_lit.contracts import KINDS, Component

C = TypeVar("C", bound=Component)


def require(condition: object, message: str) -> None:
    """Raise AssertionError with this message unless the condition holds (also under ``python -O``)."""
    if not condition:
        raise AssertionError(message)


def check_component(make: Callable[[], C], kind: str) -> C:
    """A fresh instance of a component of this kind that went through pickle, after the checks common to all kinds.

    Args:
        make: constructs the component, as the recipe would.
        kind: a key of ``areal_lit.contracts.KINDS``.
    """
    component = make()
    base, name = KINDS[kind].base, type(component).__name__
    require(isinstance(component, base), f"{name} must be a subclass of {base.__name__}, the contract of kind {kind!r}")
    require(
        component.contract_version <= KINDS[kind].version,
        f"{name}.contract_version is {component.contract_version}, the core's {kind} contract is {KINDS[kind].version}",
    )
    try:
        travelled = pickle.loads(pickle.dumps(component))
    except Exception as error:  # whatever a foreign class raises here is the finding, and is chained
        raise AssertionError(
            f"{name} does not pickle before setup, so it cannot travel to other processes ({error}); "
            "let the constructor only store its arguments, and open files, locks and connections in setup"
        ) from error
    check_state(component, make)
    require(isinstance(travelled, base), f"{name} pickles into something else, a {type(travelled).__name__}")
    return travelled  # type: ignore[no-any-return]


def check_state(component: C, make: Callable[[], C]) -> C:
    """A fresh instance that took back the component's state by way of JSON."""
    name, state = type(component).__name__, component.state_dict()
    try:
        stored = json.loads(json.dumps(dict(state)))
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{name}.state_dict() must hold plain JSON values: {error}") from error
    resumed = make()
    resumed.load_state_dict(stored)
    again = json.loads(json.dumps(dict(resumed.state_dict())))
    require(
        again == stored, f"{name}: state_dict() after load_state_dict() must be what was loaded: {again} != {stored}"
    )
    return resumed
