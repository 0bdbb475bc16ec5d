"""The section of a role that a recipe lacks, ready to be copied into it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from areal_lit.contracts import Component
from areal_lit.plugins import Plugins
from areal_lit.plugins.distributions import dotted_path
from areal_lit.recipes.schema import parameters_of
from areal_lit.types import ModelSpec

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

UNNAMED = "/path/of/another/model"


def missing_section(trainer: Trainer, role: str) -> str:
    """YAML of the role as a twin of the policy, on the policy's ranks; with an optimizer if it is trained.

    A teacher's model is left to be named: the policy learns nothing from its own.
    """
    import yaml

    optimizer = trainer.policy.optimizer if role in trainer.algorithm.heads else None
    host = trainer.policy.colocate_with or "policy"
    model = ModelSpec(path=UNNAMED) if role == "teacher" else trainer.policy.model
    twin = dataclasses.replace(trainer.policy, model=model, optimizer=optimizer, colocate_with=host, num_gpus=0)
    section = {role: _written(twin, Plugins.discover())}
    return yaml.safe_dump(section, sort_keys=False, allow_unicode=True).rstrip()


def _written(value: Any, plugins: Plugins) -> Any:
    """A value as a recipe says it: short names, no defaults."""
    if not (isinstance(value, Component) or dataclasses.is_dataclass(value)):
        return value
    cls: Any = type(value)
    defaults = {name: parameter.default for name, parameter in parameters_of(cls).items()}
    stored = {name: getattr(value, name, default) for name, default in defaults.items()}
    given = {
        name: _written(inner, plugins) for name, inner in stored.items() if _plain(inner) != _plain(defaults[name])
    }
    if not isinstance(value, Component):
        return given
    name = plugins.short(dotted_path(cls))
    return {"class_path": name, "init_args": given} if given else name


def _plain(value: Any) -> Any:
    """A list for a tuple, of which a constructor may have made the other."""
    return list(value) if isinstance(value, tuple) else value
