"""Running: a fit or evaluation from its first check to its last process.

Nothing heavy is imported before the run's processes, too, have begun to import what they need.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from areal_lit.collector import collected_later
from areal_lit.logs import shown_on_terminal
from areal_lit.recipes.warm_up import warm_up_for
from areal_lit.validation import BrokenRules, broken_rules, evaluation_rules, name_rules, place_rules, start_rules

if TYPE_CHECKING:
    from areal_lit.run.run import Run
    from areal_lit.trainer import Trainer


@contextmanager
def running(trainer: Trainer, *, resume: str | None) -> Iterator[Run]:
    """A started fit, within which the loop works; completed and ended afterwards.

    Raises:
        BrokenRules: then nothing was started.
        NothingToTrain: the checkpoint is where the run ends, a ValueError.
        KeyboardInterrupt: the run was interrupted; it has saved what it did.
    """
    with shown_on_terminal():
        _check([*broken_rules(trainer), *place_rules(trainer, resume), *name_rules(trainer, resume)])
        with warm_up_for(trainer):
            with collected_later():
                from areal_lit.run.training import TrainingLifecycle

            with TrainingLifecycle(trainer, resume=resume).run() as run:
                yield run


@contextmanager
def evaluating(trainer: Trainer, *, checkpoint: str | None) -> Iterator[Run]:
    """A started evaluation, which saves nothing; of a checkpoint, a Hugging Face model directory, or what is named."""
    if checkpoint is not None and (Path(checkpoint) / "config.json").is_file():
        trainer, checkpoint = _with_policy_from(trainer, Path(checkpoint)), None
    with shown_on_terminal():
        rules = [*broken_rules(trainer, saves=False), *evaluation_rules(trainer), *start_rules(trainer, checkpoint)]
        _check(list(dict.fromkeys(rules)))
        with warm_up_for(trainer):
            with collected_later():
                from areal_lit.run.lifecycle import Lifecycle

            with Lifecycle(trainer, resume=checkpoint).run() as run:
                yield run


def _check(broken: list[str]) -> None:
    if broken:
        raise BrokenRules(broken)


def _with_policy_from(trainer: Trainer, model: Path) -> Trainer:
    """The trainer with another model in its policy; the user's own object stays as it is."""
    changed = copy.copy(trainer)
    spec = replace(trainer.policy.model, path=str(model.resolve()), config=None)
    changed.policy = replace(trainer.policy, model=spec)
    changed.config = {}
    return changed
