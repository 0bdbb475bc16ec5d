"""The processes of a run: ranks of every role, and engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from areal_lit.contracts import Callback, GroupSpec, Process, WorkerGroup
from areal_lit.hookspecs import RANK_HOOKS
from areal_lit.plugins import fingerprint
from areal_lit.roles import RoleGroup
from areal_lit.validation import components, roles

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


def start_roles(trainer: Trainer, *, watch: Callable[[], None]) -> dict[str, RoleGroup]:
    """A handle per role; colocated roles share the ranks of another.

    Args:
        watch: raises when the run has failed elsewhere; called by whoever waits for a rank.
    """
    groups: dict[str, WorkerGroup] = {}
    present = roles(trainer)
    for name, role in present.items():
        if role.colocate_with is None:
            groups[name] = trainer.launcher.start_group(
                GroupSpec(
                    name=name,
                    target="areal_lit.worker:RoleWorker",
                    num_ranks=role.num_ranks,
                    num_threads=role.num_threads,
                    num_gpus=role.num_gpus,
                )
            )
    return {
        name: RoleGroup(
            name,
            role,
            groups[role.colocate_with or name],
            watch=watch,
            timeout_s=trainer.call_timeout_s,
            activity=trainer.activity,
        )
        for name, role in present.items()
    }


def set_up(trainer: Trainer, group: RoleGroup, callbacks: Sequence[Callback]) -> list[Future[Any]]:
    """Have every rank of a role load its model; returns at once."""
    return group.start(
        head=trainer.algorithm.heads.get(group.name, "value" if group.name == "critic" else "lm"),
        num_steps=trainer.max_steps,
        algorithm=trainer.algorithm,
        callbacks=[c for c in callbacks if any(hasattr(c, hook) for hook in RANK_HOOKS)],
        fingerprint=fingerprint(components(trainer).values()),
    )


def check_refreshes(groups: Mapping[str, RoleGroup]) -> None:
    """Raise ValueError for a role that follows the policy but is another model, once both are loaded."""
    for name, group in groups.items():
        if group.role.refresh is None:
            continue
        known = {(info.name, info.shape) for info in groups["policy"].manifest()}
        missing = [info for info in group.manifest() if (info.name, info.shape) not in known]
        if missing:
            raise ValueError(
                f"{name}.refresh takes the policy's weights, but the policy has no {missing[0].name} of shape "
                f"{list(missing[0].shape)}; give both one architecture, or leave refresh out"
            )


def start_engines(trainer: Trainer) -> list[Process]:
    """The engine processes that the inference backend describes; none for an offline algorithm."""
    if trainer.inference is None:
        return []
    specs = trainer.inference.processes(trainer.policy.model, seed=trainer.seed, deterministic=trainer.deterministic)
    return [trainer.launcher.start_process(spec) for spec in specs]


def start_teacher(trainer: Trainer) -> list[Process]:
    """The engine processes of a teacher that is served, if there is one."""
    if trainer.teacher_server is None:
        return []
    specs = trainer.teacher_server.processes(seed=trainer.seed, deterministic=trainer.deterministic)
    return [trainer.launcher.start_process(spec) for spec in specs]
