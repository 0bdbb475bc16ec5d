"""Whether every argument is of the kind it is for; in Python nothing else sees to that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from areal_lit.contracts import KINDS
from areal_lit.roles import Role
from areal_lit.teacher_server import TeacherServer

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

_ARGUMENTS = ("algorithm", "data", "launcher", "inference", "transport", "workflow", "reward")
_LISTS = {"filters": "filter", "loggers": "logger", "callbacks": "callback"}
_ROLES = ("policy", "critic", "reference", "teacher")


def kind_rules(trainer: Trainer) -> list[str]:
    """A sentence per argument that is not what it must be."""
    wanted: list[tuple[str, Any, type]] = [(name, getattr(trainer, name), KINDS[name].base) for name in _ARGUMENTS]
    wanted += [
        (f"{name}.{index}", value, KINDS[kind].base)
        for name, kind in _LISTS.items()
        for index, value in enumerate(getattr(trainer, name) or ())
    ]
    for name in _ROLES:
        role = getattr(trainer, name)
        wanted.append((name, role, Role))
        if isinstance(role, Role):
            parts = (("strategy", role.strategy), ("optimizer", role.optimizer))
            wanted += [(f"{name}.{part}", value, KINDS[part].base) for part, value in parts]
    wanted.append(("teacher_server", trainer.teacher_server, TeacherServer))
    return list(_misfits(wanted))


def _misfits(wanted: list[tuple[str, Any, type]]) -> Iterator[str]:
    for path, value, base in wanted:
        if isinstance(value, type):
            yield f"{path} must be an object, got the class {value.__name__}: construct it, as in {value.__name__}(...)"
        elif value is not None and not isinstance(value, base):
            yield f"{path} must be of a class derived from {base.__name__}, got {value!r:.60} ({type(value).__name__})"
