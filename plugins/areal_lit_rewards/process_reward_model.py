"""Process reward model: what a trained scalar head says at the end of every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from areal_lit.text import TextCodec
from areal_lit.types import ModelSpec, Scored, Trajectory
from areal_lit_rewards.reward_model import RewardModel
from areal_lit_rewards.segmentation import Total, check_steps, scored, steps_of


class ProcessRewardModel(RewardModel):
    """The scores that a model of the algorithm `reward_model` gives after the last token of each step.

    It reads the generated tokens once per completion, so policy and reward model must share one vocabulary. Scores have
    no fixed zero and no fixed scale: `process_reward` compares them over all steps of the group.

    Args:
        model: the ``hf`` directory of a reward model's checkpoint.
        delimiter: regular expression of what ends a step and belongs to it; ``(?<=.)`` makes every character a step.
        total: the completion's own reward from the scores of its steps: mean, sum, min or last.
        device: ``cpu``, ``cuda``, or ``auto``: cuda where there is one.
        max_tokens_per_microbatch: tokens that the model reads at once.
    """

    scores_steps = True

    def __init__(
        self,
        *,
        model: ModelSpec,
        delimiter: str = "\n",
        total: Total = "last",
        device: Literal["auto", "cpu", "cuda"] = "auto",
        max_tokens_per_microbatch: int = 16384,
    ) -> None:
        super().__init__(model=model, device=device, max_tokens_per_microbatch=max_tokens_per_microbatch)
        check_steps(delimiter, total)
        self.delimiter = delimiter
        self.total = total
        self._codec: TextCodec

    def use_codec(self, codec: TextCodec) -> None:
        self._codec = codec

    def setup(self) -> None:
        """Load the model and the tokenizer. Raises ValueError for a model without a scalar head."""
        super().setup()
        self._codec.load()

    def score_group(self, trajectories: Sequence[Trajectory]) -> list[Scored]:
        results = []
        for trajectory, values in zip(trajectories, self.values_after(trajectories), strict=True):
            _, steps = steps_of(trajectory, self._codec, self.delimiter)
            scores = [float(values[step.last_token]) for step in steps]
            results.append(scored(steps, scores, self.total))
        return results
