"""What workflows return: sound trajectories, or an error that names the workflow, the value and the rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from areal_lit.rollout.limits import Limits
from areal_lit.rollout.results import checked
from areal_lit.types import Example, Prompt, StepScore, Trajectory

SOUND = Trajectory(
    token_ids=np.array([5, 6, 7]), loss_mask=np.array([False, True, True]),
    logprobs=np.array([0.0, -1.0, -2.0], np.float32), versions=np.array([-1, 3, 4]),
    prompt=Prompt(prompt_id=0, source="rows", row=0, epoch=0, example=Example(prompt="p")),
)  # fmt: skip


def after_checks(result: Any) -> list[Trajectory]:
    return checked(result, workflow="Mine", sample=2, limits=Limits(vocab_size=8, newest_version=4))


def test_sound_results_are_a_list_of_their_sample() -> None:
    assert after_checks(None) == []
    assert [t.sample for t in after_checks(SOUND)] == [2]
    assert [t.reward for t in after_checks([SOUND, replace(SOUND, reward=0.5)])] == [None, 0.5]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"logprobs": [0.0, -1.0, -2.0]}, "logprobs as list, and it must be a numpy array"),
        ({"versions": np.array([-1, 3])}, "3 tokens with 3 loss_mask, 3 logprobs and 2 versions"),
        ({"versions": np.array([-1, 3, 5])}, "version 5, and no engine was offered any after 4"),
        ({"versions": np.array([-1, -1, 4])}, "version -1, and what was drawn has one >= 0"),
        ({"token_ids": np.array([5, 6, 8])}, "below the vocabulary's 8"),
        ({"temperature": float("nan")}, "temperature nan, and it must be finite"),
        ({"temperature": -1.0}, "temperature -1.0, and it must be finite and >= 0"),
        ({"stop_reason": "tired"}, "stop_reason 'tired', and it must be one of stop, length, interrupted"),
        ({"metrics": {"turns": "2"}}, "metrics {'turns': '2'}, and they must be numbers"),
        ({"metrics": None}, "metrics None, and they must be numbers"),
    ],
)
def test_what_cannot_be_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match="workflow Mine returned ") as caught:
        after_checks(replace(SOUND, **change))
    assert says in str(caught.value)


@pytest.mark.parametrize("reward", [float("nan"), float("-inf"), 1e39, "1.0", np.zeros(2), True, np.float32(0.5)])
def test_a_workflows_own_reward_is_held_to_what_rewards_are(reward: Any) -> None:
    (trajectory,) = after_checks(replace(SOUND, reward=reward))
    if isinstance(reward, bool | np.float32):
        assert type(trajectory.reward) is float
        assert trajectory.reward == float(reward)
    else:
        assert trajectory.reward is None
        assert trajectory.unscored.startswith("invalid: returned ")


def test_parts_and_steps_of_a_workflows_own_reward_count_too() -> None:
    infinite = replace(SOUND, reward=1.0, reward_parts={"style": float("inf")})
    nowhere = replace(SOUND, reward=1.0, step_scores=(StepScore(last_token=0, value=1.0),))
    assert ["finite" in t.unscored for t in after_checks([infinite, nowhere])] == [True, False]
    assert "which the policy did not choose" in after_checks(nowhere)[0].unscored
