"""REINFORCE++: no critic and no groups; the whole batch is the baseline (arXiv 2501.03262).

    A_t = sum over s >= t of gamma^(s - t) (r_s - kl_weight k1_s),     r at the last token only
    A_t <- (A_t - mean) / (std + eps)                                  over all loss tokens of the step
    loss = clipped ratio

The divergence k1 = log pi - log reference is that of the policy the step starts from. One sample per prompt will do.

| published | ours | why |
|---|---|---|
| clip 0.2 | 0.2 | |
| KL weight unstated; OpenRLHF's default 0.01 | ``kl_weight`` 0.01, k1 in the reward | |
| deviation unspecified | n - 1, ``eps`` 1e-6 | verl: n - 1, 1e-8 within the root |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.gae import reward_to_go
from areal_lit_algorithms.pieces.kl import KLEstimator, KLPlace
from areal_lit_algorithms.pieces.normalisation import Normaliser

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.token_batch import TokenBatch


class ReinforcePP(GRPO):
    """What is still to come from each token, less its divergence from the reference, normalised over all tokens.

    Args:
        gamma: discount per loss token.
        reward_norm: what is subtracted from rewards, and what divides them.
        advantage_norm: the same for advantages, each loss token with a vote.
        kl_weight: of the divergence from the reference.
        kl_in: the divergence is subtracted from each token's ``reward``, or added to the ``loss``.
        kl_estimator: k1, k2 or k3 in the reward; k2, k3 or k3+ in the loss.
    """

    def __init__(
        self,
        *,
        gamma: float = 1.0,
        reward_norm: Normaliser = Normaliser(mean_level="none", std_level="none"),
        advantage_norm: Normaliser | None = Normaliser(mean_level="batch", std_level="batch"),
        kl_weight: float = 0.01,
        kl_in: KLPlace = "reward",
        kl_estimator: KLEstimator = "k1",
        **grpo: Any,
    ) -> None:
        super().__init__(
            reward_norm=reward_norm, advantage_norm=advantage_norm, kl_weight=kl_weight, kl_in=kl_in,
            kl_estimator=kl_estimator, **grpo,
        )  # fmt: skip
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {gamma}")
        self.gamma = gamma

    def token_advantages(self, batch: TokenBatch) -> Tensor:
        return reward_to_go(batch, self.token_rewards(batch), gamma=self.gamma, turn_discount=self.turn_discount)
