"""Rollouts: prompts are admitted, run as episodes, scored and gathered into groups, on a thread of their own."""

from areal_lit.rollout.loop import RolloutLoop
from areal_lit.rollout.settings import Rollout, RolloutDefaults
from areal_lit.rollout.warmup import Warmup

__all__ = ["Rollout", "RolloutDefaults", "RolloutLoop", "Warmup"]
