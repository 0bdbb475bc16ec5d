"""Optimizer: which torch optimizer a trained role uses, and its schedule."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from areal_lit.contracts.component import Component

if TYPE_CHECKING:
    import torch


class Optimizer(Component):
    """Builds a torch optimizer; the strategy drives it.

    Args:
        lr: peak learning rate.
        schedule: shape after warm-up: ``constant``, ``linear`` or ``cosine`` decay to ``min_lr_ratio``.
        warmup_steps: training steps of linear warm-up; the first step already moves.
        min_lr_ratio: floor of the decay as a fraction of ``lr``.
        max_grad_norm: gradients are scaled down to this global L2 norm; 0 switches clipping off.
        max_skipped_steps: steps in a row that non-finite gradients may skip before the run ends.
    """

    def __init__(
        self,
        *,
        lr: float,
        schedule: Literal["constant", "linear", "cosine"] = "constant",
        warmup_steps: int = 0,
        min_lr_ratio: float = 0.0,
        max_grad_norm: float = 1.0,
        max_skipped_steps: int = 5,
    ) -> None:
        for name, value in (
            ("lr", lr),
            ("warmup_steps", warmup_steps),
            ("max_grad_norm", max_grad_norm),
            ("max_skipped_steps", max_skipped_steps),
        ):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be finite and >= 0, got {value}")
        if not 0 <= min_lr_ratio <= 1:
            raise ValueError(f"min_lr_ratio must be in [0, 1], got {min_lr_ratio}")
        self.lr = lr
        self.schedule = schedule
        self.warmup_steps = warmup_steps
        self.min_lr_ratio = min_lr_ratio
        self.max_grad_norm = max_grad_norm
        self.max_skipped_steps = max_skipped_steps

    @abstractmethod
    def build(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """A torch optimizer over these parameters at learning rate ``lr``."""

    def lr_at(self, step: int, num_steps: int | None) -> float:
        """Learning rate of training step ``step`` (from 0) of ``num_steps``."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.schedule == "constant" or num_steps is None or num_steps <= self.warmup_steps:
            return self.lr
        progress = min(1.0, (step - self.warmup_steps) / (num_steps - self.warmup_steps))
        decay = 1 - progress if self.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
        return self.lr * (self.min_lr_ratio + (1 - self.min_lr_ratio) * decay)
