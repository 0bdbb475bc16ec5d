"""Process reward: every turn or step of a completion is scored, and answers for itself (arXiv 2402.03300, 4.1.3).

    s_j = (score_j - mean(score_G)) / (std(score_G) + eps)      over the steps of all samples of group G
    A_t = sum of s_j over the step of token t and later ones  +  outcome_weight A_i
    loss = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)),    rho = pi / pi_old

Scores come from a reward (``steps``: another reward for each step; ``process_reward_model``: a trained model at the
end of each) or from a workflow that rewards turns. A_i is what the completion's own reward is worth in GRPO. Where two
steps end on one token, their scores are one, the sum. A group of equal scores, or of a single step, teaches nothing.
Neither does a completion without any score, whose s_j are an empty sum: ``train/without_step_scores`` counts these.

| published | ours | why |
|---|---|---|
| scores of steps only | ``outcome_weight`` 0 | |
| clip unstated; 0.2 in packages | 0.2 | |
| mean over each sequence, then over sequences | ``aggregation`` token_mean | as ``grpo`` |
| KL 0.04, k3 in the loss | ``kl_weight`` 0; k2 if on | as ``grpo`` |
| deviation unspecified | n - 1, ``eps`` 1e-6 | as ``grpo`` |
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from areal_lit.contracts import Reward, Workflow
from areal_lit.validation import components
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.diagnostics import without_step_scores
from areal_lit_algorithms.pieces.normalisation import Normaliser

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from areal_lit.token_batch import TokenBatch
    from areal_lit.trainer import Trainer
    from areal_lit.types import Metric


class ProcessReward(GRPO):
    """Centre the score of each step on those of its group; a token gets what its step and later ones are worth.

    Args:
        outcome_weight: of the completion's own reward, beside the scores; 0 leaves it out.
        step_norm: what is subtracted from scores, and what divides them; each step has a vote.
    """

    def __init__(self, *, outcome_weight: float = 0.0, step_norm: Normaliser = Normaliser(), **grpo: Any) -> None:
        super().__init__(**grpo)
        if not 0 <= outcome_weight < math.inf:
            raise ValueError(f"outcome_weight must be finite and >= 0, got {outcome_weight}")
        self.outcome_weight = outcome_weight
        self.step_norm = step_norm

    @property
    def turn_norm(self) -> Normaliser:
        return self.step_norm

    def advantages(self, batch: TokenBatch) -> Tensor:
        return self.outcome_weight * super().advantages(batch)

    def rules(self, trainer: Trainer) -> Iterable[str]:
        yield from super().rules(trainer)
        parts = components(trainer).values()
        rewards = [part.scores_steps for part in parts if isinstance(part, Reward)]
        workflows = [part.rewards_turns for part in parts if isinstance(part, Workflow)]
        is_needed = self.outcome_weight == 0 and trainer.reward is not None and trainer.data.unrewarded()
        if is_needed and {*rewards, *workflows} == {False}:
            yield (
                f"no step is scored by reward {type(trainer.reward).__name__} or workflow "
                f"{type(trainer.workflow).__name__}, and outcome_weight is 0, so nothing would be learned; name a "
                "reward that scores steps (steps, process_reward_model), or raise outcome_weight"
            )

    def step_metrics(self, batch: TokenBatch) -> Sequence[Metric]:
        return [*super().step_metrics(batch), without_step_scores(batch)]

    def prepare(self, batch: TokenBatch) -> TokenBatch:
        """Raises ValueError for a step in which nothing was scored that could be learned from."""
        if self.outcome_weight == 0 and batch["loss_mask"].any() and not batch["turn_scored"].any():
            raise ValueError(
                "no turn or step of this batch has a score, and outcome_weight is 0, so nothing would be learned; name "
                "a reward that scores steps (steps, process_reward_model) or a workflow with turn_rewards, or raise "
                "outcome_weight"
            )
        return super().prepare(batch)
