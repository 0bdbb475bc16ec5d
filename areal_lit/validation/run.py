"""Rules of the run as a whole: its length, its name, its place, its steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

NAME_LIMIT = 128
NAME_LIMIT_BYTES = 240
"""File systems take 255, and a suffix may follow."""


def run_rules(trainer: Trainer) -> Iterator[str]:
    """Settings of the run that can never work."""
    if trainer.max_steps is not None and trainer.max_steps < 1:
        yield f"max_steps must be >= 1 or null for open-ended, got {trainer.max_steps}"
    if trainer.max_steps is None and trainer.rollout.num_epochs is None and trainer.rollout.when_exhausted != "end":
        yield "the run would never end: set max_steps, rollout.num_epochs or rollout.when_exhausted: end"
    name = trainer.name
    if not name or name.startswith(".") or "/" in name or "\\" in name:
        yield f"name is a directory name below runs_dir and must not hold '/' or '\\' or start with '.', got {name!r}"
    elif len(name) > NAME_LIMIT or not name.isprintable():
        yield f"name must be at most {NAME_LIMIT} printable characters, got {len(name)}: {name[:NAME_LIMIT]!r}"
    elif len(name.encode()) > NAME_LIMIT_BYTES:
        yield f"name must be at most {NAME_LIMIT_BYTES} bytes in UTF-8, got {len(name.encode())}: {name!r}"
    if not trainer.call_timeout_s > 0:
        yield f"call_timeout_s must be > 0, got {trainer.call_timeout_s}"
    if trainer.num_minibatches < 1:
        yield f"num_minibatches must be >= 1, got {trainer.num_minibatches}"
    else:
        yield from _minibatch_rules(trainer)


def _minibatch_rules(trainer: Trainer) -> Iterator[str]:
    """Of unequal mini-batches, each a step of the optimizer, the small ones would give their samples more weight."""
    wanted, rollout = trainer.num_minibatches, trainer.rollout
    per_group = 1 if trainer.algorithm.offline else rollout.samples_per_group
    samples = rollout.groups_per_step * per_group
    if wanted > samples:
        yield f"num_minibatches {wanted} is more than the {samples} samples of a step; lower it"
    elif samples % wanted:
        around = (wanted + sign * distance for distance in range(1, wanted) for sign in (-1, 1))
        nearest = next(number for number in around if samples % number == 0)  # at the latest 1
        yield (
            f"num_minibatches {wanted} does not divide the {samples} samples of a step (groups_per_step times "
            f"samples_per_group); set it to {nearest}"
        )
    elif (warmup := rollout.groups_warmup) is not None:
        sizes = (warmup.at(step, rollout.groups_per_step) * per_group for step in range(warmup.steps))
        if unfit := next((size for size in sizes if size % wanted), None):
            multiple = wanted // math.gcd(wanted, per_group)
            yield (
                f"num_minibatches {wanted} does not divide the {unfit} samples of a step of the warm-up; set start and "
                f"multiple_of of rollout.groups_warmup to multiples of {multiple}"
            )
