from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from areal_lit.contracts import GroupReward, Reward
from areal_lit.testing.reward import check_reward, completion
from areal_lit.types import Scored, Trajectory
from areal_lit_rewards.composite import Composite
from areal_lit_rewards.exact_match import ExactMatch
from areal_lit_rewards.format import Format
from areal_lit_rewards.function import Function


class Remote(Reward):
    async def score(self, trajectory: Trajectory) -> float:
        return 1.0


class Ranks(GroupReward):
    def score_group(self, trajectories: Sequence[Trajectory]) -> list[float]:
        return [1.0] * len(trajectories)


def length(completion: str) -> Scored:
    return Scored(value=2.0, parts={"letters": len(completion)}, metrics={"words": 1.0})


def test_the_weighted_sum_of_parts() -> None:
    reward = Composite(parts={"right": ExactMatch(), "digits": Format(pattern=r"\d+")}, weights={"digits": 0.25})
    check_reward(
        reward,
        [
            (completion("42", answer="42"), 1.25),
            (completion("41", answer="42"), 0.25),
            (completion("no", answer="42"), 0.0),
            (completion("42"), None),
        ],
    )


def test_parts_and_metrics_are_reported_unweighted() -> None:
    reward = Composite(parts={"right": ExactMatch(), "length": Function(function=length)}, weights={"length": -1})
    reward.setup()
    score = reward.score(completion("42", answer="42"))
    assert score == Scored(
        value=-1.0, parts={"right": 1.0, "length": 2.0, "length/letters": 2.0}, metrics={"length/words": 1.0}
    )


def test_an_unscored_part_is_named() -> None:
    reward = Composite(parts={"right": ExactMatch()})
    assert "part right: the example has no field 'answer'" in reward.score(completion("42")).reason  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"parts": {}}, "at least one reward"),
        ({"parts": {"a": ExactMatch()}, "weights": {"b": 1.0}}, r"\['b'\], which are not among the parts \['a'\]"),
        ({"parts": {"a": Remote()}}, r"part 'a' \(Remote\) is async"),
        ({"parts": {"a": Ranks()}}, r"part 'a' \(Ranks\) scores whole groups"),
    ],
)
def test_what_cannot_be_combined_is_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Composite(**arguments)
