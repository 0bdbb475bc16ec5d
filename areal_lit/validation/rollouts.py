"""Rules of rollouts: what runs that learn from them need, and what the others must leave out."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from areal_lit.contracts import Reward
from areal_lit.rewarding import check_travels
from areal_lit.validation.checkpoints import evaluates_steps
from areal_lit.validation.lengths import length_rules
from areal_lit.validation.walk import components, data_modules

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


def online_rules(trainer: Trainer) -> Iterator[str]:
    """An algorithm that learns from rollouts needs every part of them, and settings that let them go on."""
    for name in ("inference", "transport", "workflow"):
        if getattr(trainer, name) is None:
            yield (
                f"{name} is missing: {type(trainer.algorithm).__name__} learns from rollouts and needs one; add "
                f"`{name}:` with a name from `areal-lit fit --{name}.help`"
            )
    rollout = trainer.rollout
    if rollout.max_staleness < trainer.sync.interval - 1:
        yield (
            f"rollout.max_staleness {rollout.max_staleness} must be >= sync.interval - 1 = "
            f"{trainer.sync.interval - 1}, or admission stops between syncs; raise max_staleness or lower sync.interval"
        )
    if trainer.deterministic and rollout.max_staleness != 0:
        yield f"deterministic needs rollout.max_staleness 0, got {rollout.max_staleness}; set it to 0"
    if trainer.deterministic and trainer.sync.interval != 1:
        yield f"deterministic needs sync.interval 1, got {trainer.sync.interval}; set it to 1"
    if rollout.sampling.temperature == 0:
        yield (
            "rollout.sampling.temperature is 0: greedy samples of one prompt are all equal and teach nothing; "
            "use e.g. 1.0 (evaluation.sampling may be greedy)"
        )
    yield from _reward_rules(trainer)
    if not trainer.launcher.in_process:
        yield from _travel_rules(trainer)
    yield from length_rules(trainer)
    yield from _distribution_rules(trainer)
    yield from _transport_rules(trainer)


def unscored_sources(trainer: Trainer) -> Sequence[str]:
    """Names of training data that nothing scores, which only algorithms that use no rewards may have."""
    return () if trainer.algorithm.uses_rewards or trainer.reward is not None else trainer.data.unrewarded()


def evaluation_rules(trainer: Trainer) -> Iterator[str]:
    """An evaluation of rollouts says what their rewards are, also for an algorithm that learns without any."""
    if trainer.algorithm.offline or trainer.algorithm.uses_rewards or trainer.reward is not None:
        return
    for path, module in data_modules(trainer).items():
        if (names := module.unrewarded()) and module.evaluation_names() != []:
            yield (
                f"reward is missing: {type(trainer.algorithm).__name__} learns without one, but an evaluation reports "
                f"rewards, and {path} leaves scoring {', '.join(names)} to it; name one, or leave evaluations out "
                "(evaluation: null)"
            )


def _reward_rules(trainer: Trainer) -> Iterator[str]:
    if not trainer.algorithm.uses_rewards:
        if trainer.evaluation.at_start or evaluates_steps(trainer):
            yield from evaluation_rules(trainer)
    elif trainer.reward is None:
        for path, module in data_modules(trainer).items():
            if names := module.unrewarded():
                yield (
                    f"reward is missing: {path} leaves scoring {', '.join(names)} to it; name one, or give each source "
                    "of a mixture its own"
                )


def _travel_rules(trainer: Trainer) -> Iterator[str]:
    """Rewards reach the processes that they run in."""
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
            f"it loads {', '.join(sorted(inference.receivers)) or 'none'}; choose another transport or inference"
        )


def offline_rules(trainer: Trainer) -> Iterator[str]:
    """An algorithm that learns from data has no use for an engine."""
    if trainer.inference is not None or trainer.transport is not None:
        yield (
            f"{type(trainer.algorithm).__name__} learns from data alone and uses no inference or transport; "
            "remove them from the recipe"
        )
    for name in ("groups_warmup", "length_warmup"):
        if getattr(trainer.rollout, name) is not None:
            yield f"rollout.{name} is given, but {type(trainer.algorithm).__name__} learns without rollouts; remove it"
