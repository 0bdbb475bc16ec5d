"""What a workflow returned, checked before anything relies on it.

Shapes: n tokens of one sequence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from areal_lit.collation import branch_problem, turn_problem
from areal_lit.rewarding.calls import judge_of
from areal_lit.rollout.limits import Limits, token_problem, version_problem
from areal_lit.types import Scored, StopReason, Trajectory

PER_TOKEN = ("token_ids", "loss_mask", "logprobs", "versions")


def checked(result: Any, *, workflow: str, sample: int, limits: Limits) -> list[Trajectory]:
    """A workflow's result as a list of this sample's trajectories.

    A reward that a workflow gave itself is a plain number then; one that is none leaves its trajectory unscored, as
    it would had a reward returned it. Raises TypeError or ValueError naming the workflow for anything else malformed.
    """
    trajectories = [] if result is None else list(result) if isinstance(result, list) else [result]
    for i, trajectory in enumerate(trajectories):
        if not isinstance(trajectory, Trajectory):
            raise TypeError(
                f"workflow {workflow} must return Trajectory, a list of them or None, got {type(trajectory).__name__}"
            )
        if problem := _problem(trajectory, limits):
            raise ValueError(f"workflow {workflow} returned {problem}")
        judged = _judged(trajectory)
        trajectories[i] = judged if judged.sample == sample else replace(judged, sample=sample)
    if problem := branch_problem(trajectories):
        raise ValueError(f"workflow {workflow} returned a trajectory that {problem}")
    return trajectories


def _problem(trajectory: Trajectory, limits: Limits) -> str:
    """What of a trajectory cannot be, in words; empty for a sound one."""
    n = len(trajectory.token_ids)
    for name in PER_TOKEN:
        if not isinstance(getattr(trajectory, name), np.ndarray):
            return f"{name} as {type(getattr(trajectory, name)).__name__}, and it must be a numpy array [n]"
    if not n == len(trajectory.loss_mask) == len(trajectory.logprobs) == len(trajectory.versions):
        return (
            f"{n} tokens with {len(trajectory.loss_mask)} loss_mask, {len(trajectory.logprobs)} logprobs and "
            f"{len(trajectory.versions)} versions; all must be equally long"
        )
    if not 0 <= trajectory.temperature < math.inf:
        return f"temperature {trajectory.temperature}, and it must be finite and >= 0: that of the sampling"
    if trajectory.stop_reason not in get_args(StopReason):
        return f"stop_reason {trajectory.stop_reason!r}, and it must be one of {', '.join(get_args(StopReason))}"
    if not _are_numbers(trajectory.metrics):
        return f"metrics {trajectory.metrics!r:.80}, and they must be numbers by name"
    chosen = trajectory.loss_mask.astype(bool)
    if problem := version_problem(trajectory.versions[chosen], limits=limits):
        return problem
    if problem := token_problem(trajectory.token_ids, trajectory.logprobs, limits=limits, chosen=chosen):
        return problem
    problem = turn_problem(trajectory)
    return problem and f"a trajectory that {problem}"


def _are_numbers(values: object) -> bool:
    return isinstance(values, Mapping) and all(isinstance(value, int | float | np.number) for value in values.values())


def _judged(trajectory: Trajectory) -> Trajectory:
    """The trajectory with its own reward as plain numbers, or unscored where that is none."""
    if trajectory.reward is None:
        return trajectory
    scored = Scored(value=trajectory.reward, parts=trajectory.reward_parts, steps=trajectory.step_scores)
    outcome = judge_of(trajectory, scored)
    if outcome.kind:
        return replace(trajectory, reward=None, unscored=f"{outcome.kind}: {outcome.reason}", reward_parts={})
    return replace(trajectory, reward=outcome.value, reward_parts=outcome.parts, step_scores=outcome.steps)
