"""Shaping of rewards before anything is compared: a penalty on length, then an affine map, then bounds.

Shapes: S samples of the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.token_batch import TokenBatch
    from areal_lit.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Overlong:
    """DAPO's soft penalty on long completions (arXiv 2503.14476, equation 13).

    Args:
        max_length: the generation budget, in tokens.
        buffer: how many tokens before the budget the penalty begins.
        factor: the penalty at the budget; it grows linearly up to there.
    """

    max_length: int
    buffer: int
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.buffer <= self.max_length:
            raise ValueError(f"buffer must be in 1..max_length {self.max_length}, got {self.buffer}")
        if not 0 < self.factor < math.inf:
            raise ValueError(f"factor must be finite and > 0, got {self.factor}; without a penalty leave overlong out")

    @property
    def free_length(self) -> int:
        """The longest completion without a penalty."""
        return self.max_length - self.buffer

    def rules(self, trainer: Trainer) -> Iterable[str]:
        """Why no completion would ever be penalised, if so."""
        budget = trainer.rollout.sampling.max_new_tokens
        if self.free_length >= budget:
            yield (
                f"reward_shaping.overlong begins beyond {self.free_length} tokens, which no completion of "
                f"rollout.sampling.max_new_tokens {budget} reaches: set its max_length to that budget"
            )

    def penalty(self, length_S: Tensor) -> Tensor:
        """What is added to the reward, in [-factor, 0]; float64 [S]."""
        return (-(length_S.double() - self.free_length) / self.buffer * self.factor).clamp(-self.factor, 0.0)


@dataclass(frozen=True, kw_only=True)
class Shaping:
    """``clip((reward + overlong penalty + reward_bias) * reward_scaling, -reward_clip, reward_clip)``.

    Args:
        overlong: a penalty on long completions; null for none.
        reward_bias: added to every reward.
        reward_scaling: multiplies it then.
        reward_clip: bounds it then; null for none.
    """

    overlong: Overlong | None = None
    reward_bias: float = 0.0
    reward_scaling: float = 1.0
    reward_clip: float | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.reward_bias):
            raise ValueError(f"reward_bias must be a finite number, got {self.reward_bias}")
        if not 0 < self.reward_scaling < math.inf:
            raise ValueError(f"reward_scaling must be finite and > 0, got {self.reward_scaling}")
        if self.reward_clip is not None and not self.reward_clip > 0:
            raise ValueError(f"reward_clip must be > 0 (or null for none), got {self.reward_clip}")

    def __call__(self, batch: TokenBatch) -> Tensor:
        """The shaped reward of each sample, float64 [S]; length is counted in loss tokens."""
        reward_S = sum(self.components(batch).values(), start=batch["reward"].new_zeros(()).double())
        reward_S = (reward_S + self.reward_bias) * self.reward_scaling
        return reward_S if self.reward_clip is None else reward_S.clamp(-self.reward_clip, self.reward_clip)

    def rules(self, trainer: Trainer) -> Iterable[str]:
        """Why its penalty would never come, if so."""
        return () if self.overlong is None else self.overlong.rules(trainer)

    def components(self, batch: TokenBatch) -> dict[str, Tensor]:
        """What is summed, by name: ``raw`` and, where there is one, the ``overlong`` penalty; float64 [S]."""
        parts = {"raw": batch["reward"].double()}
        if self.overlong is not None:
            parts["overlong"] = self.overlong.penalty(batch.loss_tokens_S)
        return parts
