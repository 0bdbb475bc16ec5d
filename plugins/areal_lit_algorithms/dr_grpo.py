"""Dr. GRPO: GRPO without its two divisions (arXiv 2503.20783).

    A_i = r_i - mean(r_G)
    loss summed over all tokens / (number of sequences x max_length)

Dividing by the group's deviation favours questions that are nearly solved or nearly hopeless; dividing by a sequence's
length favours short right and long wrong answers. A group of equal rewards has advantage 0 by itself.

| published | ours | why |
|---|---|---|
| clip 0.2 | 0.2 | |
| KL 0 | 0 | |
| constant: the generation budget | ``max_length``, to be given | it only scales the loss |
"""

from __future__ import annotations

from typing import Any

from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.normalisation import Normaliser


class DrGRPO(GRPO):
    """Centre each reward on its group, and give each token of the step the same weight.

    Args:
        max_length: the generation budget, in tokens: what sums over sequences are divided by.
        reward_norm: what is subtracted from rewards, and what divides them.
    """

    def __init__(self, *, max_length: int, reward_norm: Normaliser = Normaliser(std_level="none"), **grpo: Any) -> None:
        super().__init__(aggregation="constant", max_length=max_length, reward_norm=reward_norm, **grpo)
