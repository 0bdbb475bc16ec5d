"""Everything a run is made of, by its path in the recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from areal_lit.contracts import Component, DataModule, ProcessSpec, Reward
from areal_lit.recipes.schema import parameters_of
from areal_lit.roles import Role
from areal_lit.types import ModelSpec

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


def components(trainer: Trainer) -> dict[str, Component]:
    """Every component of a run by its path in the recipe (``policy.optimizer``, ``filters.0``)."""
    return {path: value for path, value in walk("", trainer) if isinstance(value, Component)}


def walk(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value and whatever its constructor was given, with paths. What objects hold beside that is their own."""
    cls: Any = type(value)
    inner: dict[str, Any] = {}
    if not path or isinstance(value, Component) or dataclasses.is_dataclass(value) or getattr(cls, "__final__", False):
        inner = {name: getattr(value, name, getattr(value, f"_{name}", None)) for name in parameters_of(cls)}
    elif isinstance(value, dict):
        inner = value
    elif isinstance(value, list | tuple):
        inner = {str(index): item for index, item in enumerate(value)}
    if path:
        yield path, value
    for name, item in inner.items():
        yield from walk(f"{path}.{name}" if path else name, item)


def roles(trainer: Trainer) -> dict[str, Role]:
    """The roles a run has, policy first."""
    named = {name: getattr(trainer, name) for name in ("policy", "critic", "reference", "teacher")}
    return {name: role for name, role in named.items() if role is not None}


def models(trainer: Trainer) -> dict[str, ModelSpec]:
    """Every model of a run by the part that it belongs to, that of the policy first."""
    served = {} if trainer.teacher_server is None else {"teacher_server": trainer.teacher_server.model}
    return {**{name: role.model for name, role in roles(trainer).items()}, **served}


def engine_specs(trainer: Trainer) -> list[ProcessSpec]:
    """Every engine process that would be started: the policy's, then those of a served teacher."""
    specs: list[ProcessSpec] = []
    seed, deterministic = trainer.seed, trainer.deterministic
    if trainer.inference is not None:
        specs += trainer.inference.processes(trainer.policy.model, seed=seed, deterministic=deterministic)
    if trainer.teacher_server is not None:
        specs += trainer.teacher_server.processes(seed=seed, deterministic=deterministic)
    return specs


def has_rewards(trainer: Trainer) -> bool:
    """Whether rollouts are scored, as far as the recipe says."""
    is_scored = any(isinstance(component, Reward) for component in components(trainer).values())
    return not trainer.algorithm.offline and (is_scored or trainer.algorithm.uses_rewards)


def data_modules(trainer: Trainer) -> dict[str, DataModule]:
    """The training data and further evaluation sets, by path."""
    further = trainer.evaluation.data or {}
    return {"data": trainer.data, **{f"evaluation.data.{name}": module for name, module in further.items()}}
