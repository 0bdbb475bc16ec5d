"""Rules of checkpoints: the best one is of an evaluation that takes place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_lit.evaluation import evaluation_names, metric_names

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


def evaluates_steps(trainer: Trainer) -> bool:
    """Whether steps may be evaluated, as the recipe or a callback decides."""
    is_decided_elsewhere = any(hasattr(callback, "should_evaluate") for callback in trainer.callbacks or ())
    return trainer.evaluation.every_steps > 0 or trainer.evaluation.at_end or is_decided_elsewhere


def checkpoint_rules(trainer: Trainer) -> Iterator[str]:
    """``checkpoint.best`` names a set and a metric that there will be, as far as is known before data is loaded."""
    best, evaluation = trainer.checkpoint.best, trainer.evaluation
    if best is None:
        return
    if not evaluates_steps(trainer):
        yield "checkpoint.best needs evaluations, and there are none; set evaluation.every_steps"
    known = evaluation_names(trainer.data, evaluation.data)
    if known is not None and best.set not in known:
        yield f"checkpoint.best.set {best.set!r} is no evaluation set; there are: {', '.join(known) or 'none'}"
    metrics = metric_names(evaluation.samples)
    if not trainer.algorithm.offline and best.metric not in metrics:
        yield f"checkpoint.best.metric {best.metric!r} is no metric of a set; there are: {', '.join(metrics)}"
