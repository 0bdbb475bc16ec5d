"""Lite PPO: two tricks suffice without a critic (arXiv 2508.08221).

    A_i = (r_i - mean(r_G)) / (std(r of the whole step) + eps)
    loss = clipped ratio, mean over all tokens

The deviation of the whole step stays away from 0 where a group's rewards are nearly equal. A group of equal rewards
has advantage 0.

| published | ours | why |
|---|---|---|
| clip 0.2 | 0.2 | |
| deviation and ``eps`` unspecified | n - 1, 1e-6 | as grpo |
"""

from __future__ import annotations

from typing import Any

from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.normalisation import Normaliser


class LitePPO(GRPO):
    """Centre each reward on its group, and scale it by the deviation of all rewards of the step.

    Args:
        reward_norm: what is subtracted from rewards, and what divides them.
    """

    def __init__(self, *, reward_norm: Normaliser = Normaliser(std_level="batch"), **grpo: Any) -> None:
        super().__init__(reward_norm=reward_norm, **grpo)
