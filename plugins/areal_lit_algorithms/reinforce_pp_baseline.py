"""REINFORCE++-baseline: the group's mean first, then the whole batch (arXiv 2501.03262, section on baselines).

    A_i = r_i - mean(r_G)                    on every token of sample i
    A_t <- (A_t - mean) / (std + eps)        over all loss tokens of the step
    loss = clipped ratio + kl_weight k2

After the second line a group of equal rewards has the advantage -mean / std of the step, which is near 0 and not 0.

| published | ours | why |
|---|---|---|
| clip 0.2 | 0.2 | |
| k2 in the loss, weight unstated; OpenRLHF's default 0.01 | ``kl_weight`` 0.01 | |
| deviation unspecified | n - 1, ``eps`` 1e-6 | verl: n - 1, 1e-8 within the root |
"""

from __future__ import annotations

from typing import Any

from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.normalisation import Normaliser


class ReinforcePPBaseline(GRPO):
    """Centre each reward on its group, then normalise over all tokens; stay near the reference.

    Args:
        reward_norm: what is subtracted from rewards, and what divides them.
        advantage_norm: the same for advantages, each loss token with a vote.
        kl_weight: of the divergence from the reference.
    """

    def __init__(
        self,
        *,
        reward_norm: Normaliser = Normaliser(std_level="none"),
        advantage_norm: Normaliser | None = Normaliser(mean_level="batch", std_level="batch"),
        kl_weight: float = 0.01,
        **grpo: Any,
    ) -> None:
        super().__init__(reward_norm=reward_norm, advantage_norm=advantage_norm, kl_weight=kl_weight, **grpo)
