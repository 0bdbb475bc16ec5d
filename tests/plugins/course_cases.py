"""A run as a display sees it, without the run."""

from __future__ import annotations

from types import SimpleNamespace

from areal_lit.activity import Activity
from areal_lit.weight_sync import WeightSync

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
    """What callbacks that only look see of a trainer."""
    return SimpleNamespace(
        name="quickstart", runs_dir=str(runs_dir), config=config or {}, step=step, max_steps=max_steps,
        activity=Activity(), sync=WeightSync(), algorithm=SimpleNamespace(offline=False),
        policy=SimpleNamespace(model=SimpleNamespace(dtype="float32")), critic=None, reference="a role", teacher=None,
    )  # fmt: skip
