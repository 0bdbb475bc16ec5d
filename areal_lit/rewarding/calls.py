"""Calls of rewards: what is asked, and what comes of it, whatever the reward does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from areal_lit.contracts.reward import GroupReward, Reward
from areal_lit.text import TextCodec
from areal_lit.types import LARGEST_REWARD, Scored, StepScore, Trajectory, Unscored

REASON_CHARACTERS = 500


class RewardError(RuntimeError):
    """A reward could not be had and the recipe says to stop, or no reward can be had any more."""


class Outcome(NamedTuple):
    """What came of one trajectory; a tuple because thousands a second cross a pipe.

    ``kind`` is empty when scored, else ``unscored`` (the reward said so), ``error``, ``invalid``, ``timeout``,
    ``crash``, or ``stopped`` (the pool is gone).
    """

    value: float | None = None
    kind: str = ""
    reason: str = ""
    parts: Mapping[str, float] = {}
    metrics: Mapping[str, float] = {}
    steps: tuple[StepScore, ...] = ()


class Item(NamedTuple):
    """One call: the reward's key, and one trajectory, or a whole group for a ``GroupReward``."""

    key: str
    trajectories: tuple[Trajectory, ...]


def judge(score: object) -> Outcome:
    """The outcome for whatever a reward returned; anything but a finite number is not a score."""
    if isinstance(score, Unscored):
        return Outcome(kind="unscored", reason=str(score.reason)[:REASON_CHARACTERS])
    parts: Mapping[str, float] = {}
    metrics: Mapping[str, float] = {}
    steps: tuple[StepScore, ...] = ()
    if isinstance(score, Scored):
        parts, metrics, steps, score = score.parts, score.metrics, score.steps, score.value
    if score is None or isinstance(score, str | bytes):
        return Outcome(kind="invalid", reason=f"returned {score!r:.80}; return a finite number, Scored or Unscored")
    try:
        value = float(score)  # type: ignore[arg-type]
        parts = {str(name): float(part) for name, part in parts.items()}
        metrics = {str(name): float(number) for name, number in metrics.items()}
        steps = tuple(StepScore(last_token=int(step.last_token), value=float(step.value)) for step in steps)
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        reason = f"returned {type(score).__name__} ({error}); return a finite number, Scored or Unscored"
        return Outcome(kind="invalid", reason=reason)
    if not math.isfinite(value) or not all(map(math.isfinite, parts.values())):
        return Outcome(kind="invalid", reason=f"returned {value} with parts {parts}; rewards must be finite")
    for number in (value, *(step.value for step in steps)):
        if not abs(number) <= LARGEST_REWARD:
            return Outcome(kind="invalid", reason=f"returned {number}; rewards must be within ±{LARGEST_REWARD:g}")
    return Outcome(value=value, parts=parts, metrics=metrics, steps=steps)


def judge_of(trajectory: Trajectory, score: object) -> Outcome:
    """As ``judge``; and a step ends at a token that the policy chose."""
    outcome = judge(score)
    for step in outcome.steps:
        if not (0 <= step.last_token < len(trajectory.loss_mask) and trajectory.loss_mask[step.last_token]):
            reason = (
                f"returned a step that ends at token {step.last_token} of {len(trajectory.loss_mask)}, which the "
                "policy did not choose; a step's last token is one where trajectory.loss_mask holds"
            )
            return Outcome(kind="invalid", reason=reason)
    return outcome


def describe(error: BaseException) -> str:
    """Type and message of an exception, short enough for a log line."""
    return f"{type(error).__name__}: {error}"[:REASON_CHARACTERS]


def call(reward: Reward, trajectories: Sequence[Trajectory]) -> list[Outcome]:
    """One outcome per trajectory; an exception is an outcome too."""
    if isinstance(reward, GroupReward):
        return _call_group(reward, trajectories)
    outcomes = []
    for trajectory in trajectories:
        try:
            outcomes.append(judge_of(trajectory, reward.score(trajectory)))
        # Rewards are the user's code: whatever they raise, SystemExit included, leaves this call unscored
        # and is counted in reward/unscored_error.
        except BaseException as error:  # noqa: BLE001
            outcomes.append(Outcome(kind="error", reason=describe(error)))
    return outcomes


def _call_group(reward: GroupReward, trajectories: Sequence[Trajectory]) -> list[Outcome]:
    try:
        scores = reward.score_group(trajectories)
        if isinstance(scores, str | Mapping) or not hasattr(scores, "__getitem__"):
            reason = f"score_group returned {type(scores).__name__}; return a list of scores, in order"
        elif len(scores) == len(trajectories):
            return list(map(judge_of, trajectories, scores))
        else:
            reason = f"score_group returned {len(scores)} scores for {len(trajectories)} trajectories; return one each"
        outcome = Outcome(kind="invalid", reason=reason)
    # As for a single call; the whole group is unscored.
    except BaseException as error:  # noqa: BLE001
        outcome = Outcome(kind="error", reason=describe(error))
    return [outcome] * len(trajectories)


def set_up(rewards: Mapping[str, Reward], codec: TextCodec | None) -> None:
    """Make each reward ready to score. Raises RuntimeError naming the one that failed."""
    for key, reward in rewards.items():
        try:
            if codec is not None:
                reward.use_codec(codec)
            reward.setup()
        # User code; any failure is reported to the controller and ends the run.
        except Exception as error:
            raise RuntimeError(
                f"setup of reward {key!r} ({type(reward).__name__}) failed: {describe(error)}"
            ) from error
