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

from areal_lit.checkpointing import CheckpointStore, whole_checkpoint
from areal_lit.collector import collected_later
from areal_lit.recipes.warm_up import warm_up_for
from areal_lit.validation import broken_rules

if TYPE_CHECKING:
    from areal_lit.run.work import Run
    from areal_lit.trainer import Trainer


@contextmanager
def running(trainer: Trainer, *, resume: str | None, is_evaluation: bool = False) -> Iterator[Run]:
    """A started run, within which the loop works; completed and ended afterwards.

    Args:
        resume: ``auto``, ``best`` or a checkpoint; for an evaluation ``best``, a checkpoint, the directory of a run
            that has some, or a Hugging Face model directory.
        is_evaluation: no training state is needed and nothing is saved.

    Raises:
        ValueError: rules are broken (then nothing was started), or the checkpoint leaves nothing to train.
        KeyboardInterrupt: the run was interrupted; it has saved what it did.
    """
    if is_evaluation and resume is not None:
        if resume == "best":
            run_dir = Path(trainer.runs_dir) / trainer.name
            resume = str(checkpoint_store(trainer, run_dir / "checkpoints").require_best())
        elif (Path(resume) / "config.json").is_file():
            trainer, resume = _with_policy_from(trainer, Path(resume)), None
        else:
            resume = str(whole_checkpoint(Path(resume)))
    broken = broken_rules(trainer)
    if broken:
        raise ValueError("the recipe breaks these rules:\n" + "\n".join(f"- {rule}" for rule in broken))
    with warm_up_for(trainer):
        with collected_later():
            from areal_lit.run.lifecycle import Lifecycle

        with Lifecycle(trainer, resume=resume, is_evaluation=is_evaluation).run() as run:
            yield run


def _with_policy_from(trainer: Trainer, model: Path) -> Trainer:
    """The trainer with another model in its policy; the user's own object stays as it is."""
    changed = copy.copy(trainer)
    changed.policy = copy.copy(trainer.policy)
    changed.policy.model = replace(trainer.policy.model, path=str(model.resolve()), config=None)
    changed.config = {}
    return changed


def checkpoint_store(trainer: Trainer, directory: Path) -> CheckpointStore:
    """The checkpoints below a directory, kept as the trainer says."""
    return CheckpointStore(directory, keep_last=trainer.checkpoint.keep_last, best=trainer.checkpoint.best)
