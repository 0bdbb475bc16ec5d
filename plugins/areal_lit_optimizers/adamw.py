"""AdamW (arXiv 1711.05101)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from areal_lit.contracts.optimizer import Optimizer

if TYPE_CHECKING:
    import torch

    from areal_lit.trainer import Trainer


class AdamW(Optimizer):
    """Adam with decoupled weight decay; parameters of one dimension (norms, biases) are not decayed.

    Args:
        lr: peak learning rate.
        beta1: decay of the running mean of gradients.
        beta2: decay of the running mean of squared gradients; 0.95 forgets an outlier sooner than torch's 0.999.
        eps: added to the denominator.
        weight_decay: per step, times the learning rate. Off by default: RL moves weights little from where they start.
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
        beta1: float = 0.9,
        beta2: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        schedule: Literal["constant", "linear", "cosine"] = "constant",
        warmup_steps: int = 0,
        min_lr_ratio: float = 0.0,
        max_grad_norm: float = 1.0,
        max_skipped_steps: int = 5,
    ) -> None:
        super().__init__(
            lr=lr,
            schedule=schedule,
            warmup_steps=warmup_steps,
            min_lr_ratio=min_lr_ratio,
            max_grad_norm=max_grad_norm,
            max_skipped_steps=max_skipped_steps,
        )
        for name, value in (("beta1", beta1), ("beta2", beta2)):
            if not 0 <= value < 1:
                raise ValueError(f"{name} must be in [0, 1), got {value}")
        for name, value in (("eps", eps), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise ValueError(f"{name} must be >= 0, got {value}")
        self.beta1 = beta1
        self.beta2 = beta2
        self.eps = eps
        self.weight_decay = weight_decay

    def rules(self, trainer: Trainer) -> Iterable[str]:
        if self.lr > 1:
            yield (
                f"lr {self.lr:g} would move every weight by that much in a step; it must be <= 1, and for a language "
                "model 1e-6 to 1e-3 are usual"
            )

    def build(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        parameters = list(parameters)
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=self.lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            fused=all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters),
        )
