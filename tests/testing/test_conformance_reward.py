"""The reward suite passes sound rewards and fails each planted bug, saying what is wrong."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from areal_lit.contracts import GroupReward, Reward
from areal_lit.testing import tiny_spec
from areal_lit.testing.reward import check_reward, completion
from areal_lit.text import TextCodec
from areal_lit.types import Trajectory, Unscored


class Sound(Reward):
    def score(self, trajectory: Trajectory) -> Any:
        answer = trajectory.prompt.fields.get("answer")
        return Unscored(reason="no answer") if answer is None else float(trajectory.text == answer)


class SoundAsync(Reward):
    async def score(self, trajectory: Trajectory) -> Any:
        answer = trajectory.prompt.fields.get("answer")
        return Unscored(reason="no answer") if answer is None else float(trajectory.text == answer)


class SoundGroup(GroupReward):
    def score_group(self, trajectories: Sequence[Trajectory]) -> list[Any]:
        return [Sound().score(each) for each in trajectories]


class Wrong(Sound):
    def score(self, trajectory: Trajectory) -> float:
        return 1.0


class ZeroForNoAnswer(Sound):
    def score(self, trajectory: Trajectory) -> float:
        return float(trajectory.text == trajectory.prompt.fields.get("answer"))


class NotANumber(Sound):
    def score(self, trajectory: Trajectory) -> float:
        return float("nan")


class Unpicklable(Sound):
    def __init__(self) -> None:
        self.compare = lambda left, right: left == right


class Stateful(Sound):
    def setup(self) -> None:
        self.calls = 0

    def score(self, trajectory: Trajectory) -> Any:
        self.calls += 1
        return 2.0 if self.calls > 3 else super().score(trajectory)


class Mutating(Sound):
    def score(self, trajectory: Trajectory) -> Any:
        score = super().score(trajectory)
        trajectory.prompt.fields["answer"] = "seen"  # type: ignore[index]
        return score


class Alarm(Sound):
    def score(self, trajectory: Trajectory) -> Any:
        before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, before)
        return super().score(trajectory)


class FailsOnEmpty(Sound):
    def score(self, trajectory: Trajectory) -> Any:
        return super().score(trajectory) if trajectory.text.split()[0] else 0.0


class ShortGroup(SoundGroup):
    def score_group(self, trajectories: Sequence[Trajectory]) -> list[Any]:
        return super().score_group(trajectories)[:-1]


class UnorderedGroup(SoundGroup):
    def score_group(self, trajectories: Sequence[Trajectory]) -> list[Any]:
        return [*sorted(super().score_group(trajectories)[:2], reverse=True), Unscored(reason="no answer")]


class ReadsTokens(Sound):
    """Fails where the tokens are others and the text is still that of the case."""

    def use_codec(self, codec: TextCodec) -> None:
        self.codec = codec

    def score(self, trajectory: Trajectory) -> Any:
        if trajectory.text == "4":
            assert self.codec.decode(trajectory.token_ids[trajectory.loss_mask]) == "4"
        return super().score(trajectory)


def cases() -> list[tuple[Trajectory, float | None]]:
    return [(completion("4", answer="4"), 1.0), (completion("5", answer="4"), 0.0), (completion("5"), None)]


@pytest.mark.parametrize("reward", [Sound(), SoundAsync(), SoundGroup()], ids=lambda reward: type(reward).__name__)
def test_sound_rewards_pass(reward: Reward) -> None:
    check_reward(reward, cases())


@pytest.mark.parametrize(
    ("reward", "complaint"),
    [
        (Wrong(), "must score 0.0, got 1.0"),
        (ZeroForNoAnswer(), "must stay unscored"),
        (NotANumber(), "must be finite"),
        (Unpicklable(), "cannot be sent"),
        (Stateful(), "order of calls"),
        (Mutating(), "changed the example's fields"),
        (Alarm(), "in a thread"),
        (FailsOnEmpty(), "a model will write it"),
        (ShortGroup(), "2 scores for 3"),
        (UnorderedGroup(), "order of calls"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Reward) else None,
)
def test_planted_bugs_fail(reward: Reward, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_reward(reward, cases())


def test_odd_tokens_come_with_their_text(tmp_path: Path) -> None:
    codec = TextCodec(tiny_spec(tmp_path))
    check_reward(ReadsTokens(), [(completion("4", codec=codec, answer="4"), 1.0)], codec=codec)
