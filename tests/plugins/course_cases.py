"""A run as a display sees it, without the run."""

from __future__ import annotations

from areal_lit import Role, Rollout, Trainer
from areal_lit.types import ModelSpec
from areal_lit_algorithms.grpo import GRPO
from areal_lit_data.arithmetic import Arithmetic
from areal_lit_launchers.inline import Inline
from areal_lit_optimizers.adamw import AdamW
from areal_lit_single.strategy import Single

METRICS = {
    "rollout/reward": 0.5,
    "rollout/staleness": 1.25,
    "rollout/staleness_max": 2.0,
    "rollout/length": 6.5,
    "rollout/tokens": 5000.0,
    "rollout/prompt_tokens": 20000.0,
    "rollout/truncated": 0.02,
    "time/step": 0.5,
    "time/wait_batch": 0.125,
    "time/train": 0.25,
    "time/checkpoint": 0.0,
}


def stand_in_trainer(*, step=0, max_steps=200, runs_dir="runs", config=None):
    """A trainer whose run never begins."""
    spec = ModelSpec(path="package:areal_lit_recipes/quickstart_model", dtype="float32")
    trainer = Trainer(
        name="quickstart", runs_dir=str(runs_dir), max_steps=max_steps, algorithm=GRPO(), data=Arithmetic(),
        policy=Role(model=spec, strategy=Single(), optimizer=AdamW(lr=1e-3)),
        reference=Role(model=spec, strategy=Single()), launcher=Inline(),
        rollout=Rollout(groups_per_step=4, samples_per_group=2),
    )  # fmt: skip
    trainer.step = step
    trainer.config = config or {}
    return trainer
