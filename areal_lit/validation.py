"""Every cross-field rule of a run, checked before any process starts; and what would be started where."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_lit.contracts import KINDS, Component, Reward
from areal_lit.models import resolve
from areal_lit.plugins import kind_of
from areal_lit.recipes.schema import parameters_of
from areal_lit.rewarding import check_travels
from areal_lit.roles import Role
from areal_lit.types import Sampling

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

NAME_LIMIT = 128
ROLE_OF_NEED = {"reference": "reference", "values": "critic", "teacher": "teacher"}


def components(trainer: Trainer) -> dict[str, Component]:
    """Every component of a run by its path in the recipe (``policy.optimizer``, ``filters.0``)."""
    return {path: value for path, value in _walk("", trainer) if isinstance(value, Component)}


def _walk(path: str, value: Any) -> Iterator[tuple[str, Any]]:
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
        yield from _walk(f"{path}.{name}" if path else name, item)


def roles(trainer: Trainer) -> dict[str, Role]:
    """The roles a run has, policy first."""
    named = {name: getattr(trainer, name) for name in ("policy", "critic", "reference", "teacher")}
    return {name: role for name, role in named.items() if role is not None}


def broken_rules(trainer: Trainer) -> list[str]:
    """A sentence per broken rule: value, rule, way out. Starts and loads nothing."""
    broken = [*_run_rules(trainer), *_model_rules(trainer), *_role_rules(trainer), *_launch_rules(trainer)]
    broken += _data_rules(trainer) if trainer.algorithm.offline else _online_rules(trainer)
    for path, component in components(trainer).items():
        kind = kind_of(type(component))
        if component.contract_version > KINDS[kind].version:
            broken.append(
                f"{path}: {type(component).__name__} implements version {component.contract_version} of the {kind} "
                f"contract, this areal-lit knows {KINDS[kind].version}; upgrade areal-lit or take an older release"
            )
            continue
        broken += [f"{path}: {rule}" for rule in component.rules(trainer)]
    return list(dict.fromkeys(broken))


def _run_rules(trainer: Trainer) -> Iterator[str]:
    if trainer.max_steps is not None and trainer.max_steps < 1:
        yield f"max_steps must be >= 1 or null for open-ended, got {trainer.max_steps}"
    if trainer.max_steps is None and trainer.rollout.num_epochs is None and trainer.rollout.when_exhausted != "end":
        yield "the run would never end: set max_steps, rollout.num_epochs or rollout.when_exhausted: end"
    name = trainer.name
    if not name or name.startswith(".") or "/" in name or "\\" in name:
        yield f"name is a directory name below runs_dir and must not hold '/' or '\\' or start with '.', got {name!r}"
    elif len(name) > NAME_LIMIT or not name.isprintable():
        yield f"name must be at most {NAME_LIMIT} printable characters, got {len(name)}: {name[:NAME_LIMIT]!r}"
    if not trainer.call_timeout_s > 0:
        yield f"call_timeout_s must be > 0, got {trainer.call_timeout_s}"
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
    yield from _reward_rules(trainer)
    yield from _length_rules(trainer)
    yield from _distribution_rules(trainer)
    yield from _transport_rules(trainer)


def _reward_rules(trainer: Trainer) -> Iterator[str]:
    modules = {"data": trainer.data, **{f"evaluation.data.{n}": m for n, m in trainer.evaluation.data.items()}}
    for path, module in modules.items():
        if trainer.reward is None and (names := module.unrewarded()):
            yield (
                f"reward is missing: {path} leaves scoring {', '.join(names)} to it; name one, or give each source of "
                "a mixture its own"
            )
    if trainer.launcher.in_process:
        return
    untravelled: list[str] = []
    for path, component in components(trainer).items():
        if not isinstance(component, Reward) or inspect.iscoroutinefunction(component.score):
            continue
        if not any(path.startswith(f"{outer}.") for outer in untravelled):
            try:
                check_travels({path: component})
            except ValueError as error:
                untravelled.append(path)
                yield str(error)


def _length_rules(trainer: Trainer) -> Iterator[str]:
    """What one episode may generate must fit a micro-batch, with at least a token of prompt."""
    drawn = dict(_walk("data", trainer.data)) | {"rollout.sampling": trainer.rollout.sampling}
    for path, sampling in drawn.items():
        if not isinstance(sampling, Sampling):
            continue
        for name, role in roles(trainer).items():
            if sampling.max_new_tokens >= (limit := role.strategy.max_tokens_per_microbatch):
                yield (
                    f"{path}.max_new_tokens {sampling.max_new_tokens} and a prompt do not fit "
                    f"{name}.strategy.max_tokens_per_microbatch {limit}, and a sequence is never split; raise the "
                    "latter or lower the former"
                )


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


def _model_rules(trainer: Trainer) -> Iterator[str]:
    for role, given in roles(trainer).items():
        try:
            resolve(given.model.path)
        except ValueError as error:
            yield f"{role}.model.path: {error}"


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
        twins = [other for other in present if other < role and present[other].strategy is given.strategy]
        if twins:
            yield f"{role}.strategy is the very object of {twins[0]}.strategy; construct one for each role"
        has_own_ranks = given.colocate_with is None and not trainer.launcher.in_process
        if trainer.deterministic and has_own_ranks and not given.num_threads:
            yield f"deterministic needs a fixed number of threads, got {role}.num_threads 0; set it, for example to 1"
        if role in trained and given.optimizer is None:
            yield f"{role}.optimizer is missing: {name} trains that role"
        if role in used - trained and given.optimizer is not None:
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
        note = "" if Path(resolve(role.model.path)).exists() else " (a hub model; not checked)"
        lines.append(f"{name}: {type(role.strategy).__name__} of {role.model.path}{note}, {where}")
    if trainer.inference is not None:
        specs = trainer.inference.processes(
            trainer.policy.model, seed=trainer.seed, deterministic=trainer.deterministic
        )
        lines += [f"{spec.name}: {trainer.launcher.describe(spec.name, 1)}" for spec in specs]
    if not trainer.algorithm.offline:
        where = "this process" if trainer.launcher.in_process else f"{trainer.rewarding.num_workers} processes"
        lines.append(f"rewards: {where}")
    return lines
