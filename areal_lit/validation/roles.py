"""Rules of roles: which ones a run needs, and where they can live."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_lit.contracts import Algorithm, Strategy
from areal_lit.plugins import Plugins
from areal_lit.plugins.distributions import dotted_path
from areal_lit.recipes.files import ready_recipes
from areal_lit.recipes.schema import parameters_of
from areal_lit.validation.missing_role import missing_section
from areal_lit.validation.walk import roles

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

ROLE_OF_NEED = {
    "reference": "reference", "values": "critic", "teacher": "teacher", "topk": "teacher", "divergence": "teacher"
}  # fmt: skip


def role_rules(trainer: Trainer) -> Iterator[str]:
    """The algorithm has the roles it needs and no others, each trained or frozen as it must be."""
    algorithm, present = trainer.algorithm, roles(trainer)
    name, used = type(algorithm).__name__, _used(algorithm)
    served = {"teacher"} if trainer.teacher_server is not None else set()
    for role in sorted(used - set(present) - served):
        yield _missing(trainer, role)
    for role in sorted(set(present) - used):
        yield (
            f"{role} is given but {name}{_options(algorithm)} does not use it; remove the section or change the "
            "algorithm's options"
        )
    for role, given in present.items():
        if role in algorithm.heads and given.optimizer is None:
            yield f"{role}.optimizer is missing: {name} trains that role; add one, such as adamw"
        if role in used - set(algorithm.heads) and given.optimizer is not None:
            yield f"{role}.optimizer is given but {name} does not train that role; remove it"
        yield from _home_rules(trainer, role)


def _missing(trainer: Trainer, role: str) -> str:
    """That a role is not there, with what to add."""
    cls = type(trainer.algorithm)
    below = "the section below, a twin of the policy"
    if role == "teacher":
        below = "the section below with the path of a better model (or `teacher_server:` with model and inference)"
    is_always = role in _used_by_default(cls)
    cause = cls.__name__ if is_always else f"{cls.__name__}{_options(trainer.algorithm)}"
    way_out = "choose another algorithm" if is_always else "change the algorithm's options"
    ready = ready_recipes(Plugins.discover().short(dotted_path(cls)))
    section = missing_section(trainer, role)
    return f"{role} is missing: {cause} needs that role; add {below}, or {way_out}{ready}\n{section}"


def _home_rules(trainer: Trainer, role: str) -> Iterator[str]:
    """It has a strategy of its own, and ranks, or shares those of a role that has."""
    present = roles(trainer)
    given = present[role]
    twins = [other for other in present if other < role and present[other].strategy is given.strategy]
    if twins:
        yield f"{role}.strategy is the very object of {twins[0]}.strategy; construct one for each role"
    host = given.colocate_with
    if host is None:
        if trainer.deterministic and not trainer.launcher.in_process and not given.num_threads:
            yield f"deterministic needs a fixed number of threads, got {role}.num_threads 0; set it, for example to 1"
    elif host not in present or host == role or present[host].colocate_with is not None:
        yield f"{role}.colocate_with must name another role with ranks of its own, got {host!r}"
    elif present[host].num_ranks != given.num_ranks:
        wanted = present[host].num_ranks
        yield f"{role}.num_ranks {given.num_ranks} must equal {host}.num_ranks {wanted} to colocate"


def refresh_rules(trainer: Trainer) -> Iterator[str]:
    """Who follows the policy is frozen, and can reach its weights."""
    present = roles(trainer)
    for role, given in present.items():
        if given.refresh is None:
            continue
        if role in trainer.algorithm.heads:
            yield f"{role}.refresh is given, but {type(trainer.algorithm).__name__} trains that role; remove it"
            continue
        if (given.colocate_with or role) != (present["policy"].colocate_with or "policy"):
            yield (
                f"{role}.refresh takes weights of the policy from the same ranks, but {role} lives on others; set "
                f"{role}.colocate_with: policy"
            )
        if type(given.strategy).copy_from is Strategy.copy_from:
            yield (
                f"{role}.refresh is given, but strategy {type(given.strategy).__name__} cannot copy weights between "
                "roles; remove it or choose another strategy"
            )


def _used(algorithm: Algorithm) -> set[str]:
    needed = {ROLE_OF_NEED[need] for need in algorithm.needs if need in ROLE_OF_NEED}
    return {"policy", *algorithm.heads, *needed}


def _used_by_default(cls: type[Algorithm]) -> set[str]:
    """Roles that no option brought in; none are known of a class that cannot do without arguments."""
    has_defaults = not any(parameter.is_required for parameter in parameters_of(cls).values())
    return _used(cls()) if has_defaults else set()


def _options(algorithm: Algorithm) -> str:
    """What was asked of an algorithm beside its defaults."""
    defaults = {name: parameter.default for name, parameter in parameters_of(type(algorithm)).items()}
    given = {name: getattr(algorithm, name, default) for name, default in defaults.items()}
    changed = [f"{name} {value}" for name, value in given.items() if value != defaults[name]]
    return f" with {', '.join(changed)}" if changed else ""


def launch_rules(trainer: Trainer) -> Iterator[str]:
    """Every role can live on the ranks it asks for."""
    for name, role in roles(trainer).items():
        if role.num_ranks > 1 and role.strategy.needs_one_rank:
            yield (
                f"{name}.num_ranks is {role.num_ranks}, but strategy {type(role.strategy).__name__} runs on one rank; "
                "set num_ranks to 1 or choose another strategy"
            )
        if role.num_ranks > 1 and trainer.launcher.in_process:
            yield (
                f"{name}.num_ranks is {role.num_ranks}, but launcher {type(trainer.launcher).__name__} has only this "
                "process; use launcher: local"
            )
