"""DefaultPolicies: when a run syncs, evaluates and saves unless a callback decides otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from areal_lit.hookspecs import hookimpl

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


class DefaultPolicies:
    """When to sync, evaluate and save, unless a callback decides otherwise.

    Args:
        best_score: of the best checkpoint so far, None if there is none; asked for at the first evaluation.
    """

    def __init__(self, best_score: Callable[[], float | None]) -> None:
        self._best_score = best_score
        self._best: float | None = None
        self._is_best_known = False
        self._best_step = -1
        self._saved_s = time.monotonic()

    @hookimpl(trylast=True)
    def should_sync_weights(self, trainer: Trainer, step: int) -> bool:
        return step % trainer.sync.interval == 0 or step == trainer.max_steps

    @hookimpl(trylast=True)
    def should_evaluate(self, trainer: Trainer, step: int) -> bool:
        return trainer.evaluation.is_due(step, is_last=step == trainer.max_steps)

    @hookimpl(trylast=True)
    def should_checkpoint(self, trainer: Trainer, step: int) -> bool:
        return step == self._best_step or trainer.checkpoint.is_due(
            step, is_last=step == trainer.max_steps, seconds_since_save=time.monotonic() - self._saved_s
        )

    @hookimpl
    def checkpoint_save(self) -> None:
        self._saved_s = time.monotonic()

    @hookimpl
    def evaluate_end(self, trainer: Trainer, step: int, metrics: Mapping[str, float]) -> None:
        """Before the first step there is nothing to save."""
        if trainer.checkpoint.best is None or step == 0:
            return
        if not self._is_best_known:
            self._best, self._is_best_known = self._best_score(), True
        score = trainer.checkpoint.best.score(metrics)
        if score is not None and (self._best is None or score > self._best):
            self._best, self._best_step = score, step
