"""Every event hook: when it is called, on which thread, and what an implementation may do.

All hooks are synchronous. Implementations are methods marked ``@areal_lit.hookimpl`` and take the subset of
arguments they need. A hook that raises, or returns what its kind does not take, ends the run with an error naming its
distribution. It looks at what it is given and changes none of it: a run goes on with what a hook did to a batch or a
group, and nothing checks it any more.

Kinds: **notify** (called in turn, results ignored; training thread unless marked [rank]), **veto** (any False
drops; all are heard; on the event loop, with a warning past 5 ms), **policy** (the first result that is not None
decides; the core's default comes last), **context** (each returns a context manager that is entered around the
phase).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pluggy

if TYPE_CHECKING:
    from areal_lit.token_batch import TokenBatch
    from areal_lit.trainer import Trainer
    from areal_lit.types import Group, Prompt

hookspec = pluggy.HookspecMarker("areal_lit")
hookimpl = pluggy.HookimplMarker("areal_lit")

PhaseName = Literal["wait_batch", "prepare", "train", "sync_weights", "evaluate", "checkpoint"]

RANK_HOOKS = ("before_optimizer_step",)
"""Hooks called on ranks; only callbacks that implement one travel there."""


class HookSpecs:
    """The specifications, in the order a run meets them."""

    # --- notify ----------------------------------------------------------------------------------

    @hookspec
    def configure(self, trainer: Trainer) -> None:
        """notify: all components exist, nothing has started."""

    @hookspec
    def fit_start(self, trainer: Trainer) -> None:
        """notify: every process runs and the engine holds version 0 (or the resumed one)."""

    @hookspec
    def rollout_finish(self, trainer: Trainer, group: Group) -> None:
        """notify: a group is complete and scored. Queued from the event loop to the training thread, told before the
        next batch is prepared and when the loop has ended."""

    @hookspec
    def batch_ready(self, trainer: Trainer, batch: TokenBatch, step: int) -> None:
        """notify: the step's batch is prepared (advantages and all), before it is split."""

    @hookspec
    def before_optimizer_step(self, model: Any, role: str) -> None:
        """notify [rank]: gradients are accumulated and clipped. ``model`` is the torch module."""

    @hookspec
    def step_end(self, trainer: Trainer, step: int, metrics: Mapping[str, float]) -> None:
        """notify: a training step is over, its weights synced, its metrics logged."""

    @hookspec
    def weights_synced(self, trainer: Trainer, version: int, seconds: float) -> None:
        """notify: the engine holds ``version``."""

    @hookspec
    def evaluate_end(self, trainer: Trainer, step: int, metrics: Mapping[str, float]) -> None:
        """notify: an evaluation is over."""

    @hookspec
    def checkpoint_save(self, trainer: Trainer, step: int, directory: Path) -> None:
        """notify: the state of ``step`` is captured for a checkpoint that is not yet committed; may add files of that
        moment to ``directory``. Ranks may still be writing theirs, so do not rely on other files in it."""

    @hookspec
    def checkpoint_load(self, trainer: Trainer, step: int, directory: Path) -> None:
        """notify: everything was restored from ``directory``."""

    @hookspec
    def fit_end(self, trainer: Trainer, status: str) -> None:
        """notify: the run is over (``finished``, ``failed``, ``interrupted``); processes still run if they can."""

    # --- veto ------------------------------------------------------------------------------------

    @hookspec
    def rollout_admit(self, prompt: Prompt) -> bool | None:
        """veto: whether this prompt is rolled out at all."""

    @hookspec
    def group_ready(self, group: Group) -> bool | None:
        """veto: whether a complete group goes to training; rejected ones are counted and replaced."""

    # --- policy ----------------------------------------------------------------------------------

    @hookspec(firstresult=True)
    def rollout_error(
        self, prompt: Prompt, error: BaseException, attempt: int
    ) -> Literal["retry", "drop", "raise"] | None:
        """policy: an episode failed. The default retries twice, then drops, within the failure budget."""

    @hookspec(firstresult=True)
    def should_sync_weights(self, trainer: Trainer, step: int) -> bool | None:
        """policy: whether to sync after this step. The default: every ``sync.interval`` steps and after the last. An
        evaluation is preceded by a sync in any case."""

    @hookspec(firstresult=True)
    def should_evaluate(self, trainer: Trainer, step: int) -> bool | None:
        """policy: whether to evaluate after ``step`` steps (0: before training). Asked before the sync."""

    @hookspec(firstresult=True)
    def should_checkpoint(self, trainer: Trainer, step: int) -> bool | None:
        """policy: whether to save after ``step`` steps. The default: each ``checkpoint.every_steps`` and
        ``every_minutes``, after an evaluation that was the best so far (``checkpoint.best``), and at the end."""

    # --- context ---------------------------------------------------------------------------------

    @hookspec
    def phase(self, trainer: Trainer, name: PhaseName, step: int) -> AbstractContextManager[object] | None:
        """context: a manager entered around a phase of the loop; timing and tracing live here. It sees an exception of
        the phase, but cannot swallow it."""
