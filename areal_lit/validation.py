"""Every cross-field rule of a run, checked before any process starts; and what would be started where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from areal_lit.contracts import Component
from areal_lit.evaluation import Evaluation
from areal_lit.roles import Role

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

ROLE_OF_NEED = {"reference": "reference", "values": "critic", "teacher": "teacher"}


def components(trainer: Trainer) -> dict[str, Component]:
    """Every component of a run by its path in the recipe (``policy.optimizer``, ``filters.0``)."""
    found: dict[str, Component] = {}
    for name, value in vars(trainer).items():
        found.update(_walk(name.lstrip("_"), value))
    return found


def _walk(path: str, value: Any) -> Iterator[tuple[str, Component]]:
    if isinstance(value, Component):
        yield path, value
    if isinstance(value, Component | Role | Evaluation) or hasattr(value, "__dataclass_fields__"):
        fields = getattr(value, "__dict__", None) or {k: getattr(value, k) for k in getattr(value, "__slots__", ())}
        for name, inner in fields.items():
            yield from _walk(f"{path}.{name.lstrip('_')}", inner)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _walk(f"{path}.{key}", inner)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, inner in enumerate(value):
            yield from _walk(f"{path}.{index}", inner)


def roles(trainer: Trainer) -> dict[str, Role]:
    """The roles a run has, policy first."""
    named = {name: getattr(trainer, name) for name in ("policy", "critic", "reference", "teacher")}
    return {name: role for name, role in named.items() if role is not None}


def broken_rules(trainer: Trainer) -> list[str]:
    """A sentence per broken rule: value, rule, way out. Starts and loads nothing."""
    broken = [*_run_rules(trainer), *_role_rules(trainer), *_launch_rules(trainer)]
    broken += _data_rules(trainer) if trainer.algorithm.offline else _online_rules(trainer)
    for path, component in components(trainer).items():
        broken += [f"{path}: {rule}" for rule in component.rules(trainer)]
    return list(dict.fromkeys(broken))


def _run_rules(trainer: Trainer) -> Iterator[str]:
    if trainer.max_steps is not None and trainer.max_steps < 1:
        yield f"max_steps must be >= 1 or null for open-ended, got {trainer.max_steps}"
    if trainer.max_steps is None and trainer.rollout.num_epochs is None and trainer.rollout.when_exhausted != "end":
        yield "the run would never end: set max_steps, rollout.num_epochs or rollout.when_exhausted: end"
    if not trainer.name or trainer.name.startswith(".") or "/" in trainer.name:
        yield f"name is a directory name below runs_dir and must not hold '/' or start with '.', got {trainer.name!r}"
    if trainer.num_minibatches < 1:
        yield f"num_minibatches must be >= 1, got {trainer.num_minibatches}"
    samples = trainer.rollout.groups_per_step * (1 if trainer.algorithm.offline else trainer.rollout.samples_per_group)
    if trainer.num_minibatches > samples:
        yield f"num_minibatches {trainer.num_minibatches} is more than the {samples} samples of a step; lower it"


def _online_rules(trainer: Trainer) -> Iterator[str]:
    for name in ("inference", "transport", "workflow"):
        if getattr(trainer, name) is None:
            yield f"{name} is missing: {type(trainer.algorithm).__name__} learns from rollouts and needs one"
    rollout = trainer.rollout
    if rollout.max_staleness < trainer.sync.interval - 1:
        yield (
            f"rollout.max_staleness {rollout.max_staleness} must be >= sync.interval - 1 = "
            f"{trainer.sync.interval - 1}, or admission stops between syncs; raise max_staleness or lower sync.interval"
        )
    if trainer.deterministic and rollout.max_staleness != 0:
        yield f"deterministic needs rollout.max_staleness 0, got {rollout.max_staleness}"
    if trainer.deterministic and trainer.sync.interval != 1:
        yield f"deterministic needs sync.interval 1, got {trainer.sync.interval}"
    if rollout.sampling.temperature == 0:
        yield (
            "rollout.sampling.temperature is 0: greedy samples of one prompt are all equal and teach nothing; "
            "use e.g. 1.0 (evaluation.sampling may be greedy)"
        )
    if trainer.reward is None and not trainer.data.sources():
        yield "reward is missing: rollouts must be scored; name one, or a mixture whose sources bring their own"
    yield from _distribution_rules(trainer)
    yield from _transport_rules(trainer)


def _distribution_rules(trainer: Trainer) -> Iterator[str]:
    if trainer.inference is None:
        return
    declared = trainer.inference.logprobs
    sampling = trainer.rollout.sampling
    if sampling.temperature not in (0.0, 1.0) and not declared.after_temperature:
        yield (
            f"inference reports log-probs before temperature, training computes them at {sampling.temperature}; "
            "set rollout.sampling.temperature to 1.0 or choose another backend"
        )
    if declared.after_truncation and (sampling.top_p < 1 or sampling.top_k > 0):
        yield (
            "inference renormalises log-probs over top-p/top-k, training does not; "
            "set rollout.sampling.top_p 1.0 and top_k 0 or choose another backend"
        )


def _transport_rules(trainer: Trainer) -> Iterator[str]:
    transport, inference, launcher = trainer.transport, trainer.inference, trainer.launcher
    if transport is None or inference is None:
        return
    if not transport.crosses_processes and not launcher.in_process:
        yield (
            f"transport {type(transport).__name__} stays within one process, but launcher "
            f"{type(launcher).__name__} starts others; use transport: file"
        )
    if "*" not in inference.receivers and transport.receiver not in inference.receivers:
        yield (
            f"inference {type(inference).__name__} cannot load the receiver {transport.receiver}; "
            f"it loads {', '.join(sorted(inference.receivers)) or 'none'}"
        )


def _data_rules(trainer: Trainer) -> Iterator[str]:
    if trainer.inference is not None or trainer.transport is not None:
        yield (
            f"{type(trainer.algorithm).__name__} learns from data alone and uses no inference or transport; "
            "remove them from the recipe"
        )


def _role_rules(trainer: Trainer) -> Iterator[str]:
    present = roles(trainer)
    trained = set(trainer.algorithm.heads)
    used = trained | {ROLE_OF_NEED[need] for need in trainer.algorithm.needs if need in ROLE_OF_NEED} | {"policy"}
    name = type(trainer.algorithm).__name__
    for role in sorted(used - set(present)):
        yield f"{role} is missing: {name} needs that role; add a `{role}:` section with model and strategy"
    for role in sorted(set(present) - used):
        yield f"{role} is given but {name} does not use it; remove the section or change the algorithm's options"
    for role, given in present.items():
        if role in trained and given.optimizer is None:
            yield f"{role}.optimizer is missing: {name} trains that role"
        if role not in trained and given.optimizer is not None:
            yield f"{role}.optimizer is given but {name} does not train that role; remove it"
        host = given.colocate_with
        if host is None:
            continue
        if host not in present or host == role or present[host].colocate_with is not None:
            yield f"{role}.colocate_with must name another role with ranks of its own, got {host!r}"
        elif present[host].num_ranks != given.num_ranks:
            wanted = present[host].num_ranks
            yield f"{role}.num_ranks {given.num_ranks} must equal {host}.num_ranks {wanted} to colocate"


def _launch_rules(trainer: Trainer) -> Iterator[str]:
    for name, role in roles(trainer).items():
        if role.num_ranks > 1 and role.strategy.needs_one_rank:
            yield f"{name}.num_ranks is {role.num_ranks}, but strategy {type(role.strategy).__name__} runs on one rank"
        if role.num_ranks > 1 and trainer.launcher.in_process:
            yield (
                f"{name}.num_ranks is {role.num_ranks}, but launcher {type(trainer.launcher).__name__} has only this "
                "process; use launcher: local"
            )


def describe(trainer: Trainer) -> list[str]:
    """What would be started where, a line each."""
    lines = ["controller: this process"]
    for name, role in roles(trainer).items():
        where = f"on the ranks of {role.colocate_with}" if role.colocate_with else ""
        where = where or trainer.launcher.describe(name, role.num_ranks)
        lines.append(f"{name}: {type(role.strategy).__name__} of {role.model.path}, {where}")
    if trainer.inference is not None:
        specs = trainer.inference.processes(
            trainer.policy.model, seed=trainer.seed, deterministic=trainer.deterministic
        )
        lines += [f"{spec.name}: {trainer.launcher.describe(spec.name, 1)}" for spec in specs]
    if not trainer.algorithm.offline:
        where = "this process" if trainer.launcher.in_process else f"{trainer.rewarding.num_workers} processes"
        lines.append(f"rewards: {where}")
    return lines
