"""Steps: every step of a completion is scored by another reward."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Literal

from areal_lit.contracts import GroupReward, Reward
from areal_lit.rewarding import judge
from areal_lit.text import TextCodec
from areal_lit.types import Example, Scored, Trajectory, Unscored
from areal_lit_rewards.segmentation import Total, check_steps, scored, steps_of


class Steps(Reward):
    """Splits a completion by a delimiter and has each step scored: a rubric for lines, a check of every equation.

    Each score lands on the last token of its step, for the algorithm `process_reward` (and any other that reads rewards
    of turns). A step sees its text as the completion; a step that cannot be scored leaves the completion unscored.

    Args:
        step: the reward of a step.
        delimiter: regular expression of what ends a step and belongs to it; ``(?<=.)`` makes every character a step.
        reads: the ``step`` alone, or the ``prefix`` of the completion that ends with it.
        total: the completion's own reward from the scores of its steps: mean, sum, min or last.
    """

    scores_steps = True

    def __init__(
        self, *, step: Reward, delimiter: str = "\n", reads: Literal["step", "prefix"] = "step", total: Total = "mean"
    ) -> None:
        check_steps(delimiter, total)
        if isinstance(step, GroupReward) or inspect.iscoroutinefunction(step.score):
            kind = "scores whole groups" if isinstance(step, GroupReward) else "is async"
            raise ValueError(
                f"step ({type(step).__name__}) {kind}, but steps are scored one by one in the reward pool; name a "
                "reward with a plain `def score`"
            )
        self.step = step
        self.delimiter = delimiter
        self.reads = reads
        self.total = total
        self._codec: TextCodec

    def use_codec(self, codec: TextCodec) -> None:
        self._codec = codec
        self.step.use_codec(codec)

    def setup(self) -> None:
        """Load the tokenizer, which tells where in the tokens a step ends."""
        self._codec.load()
        self.step.setup()

    def check(self, example: Example) -> None:
        self.step.check(example)

    def score(self, trajectory: Trajectory) -> Scored | Unscored:
        text, steps = steps_of(trajectory, self._codec, self.delimiter)
        scores: list[float] = []
        for number, step in enumerate(steps, 1):
            seen = step.text if self.reads == "step" else text[: step.end]
            outcome = judge(self.step.score(replace(trajectory, text=seen)))
            if outcome.value is None:
                return Unscored(reason=f"step {number} of {len(steps)}: {outcome.reason}")
            scores.append(outcome.value)
        return scored(steps, scores, self.total)
