"""What can be wrong with a model's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def check_finite(model: nn.Module) -> None:
    """Raise ValueError for weights with NaN or infinity among them, before a number is made of these."""
    import torch

    extremes = {name: torch.stack(p.detach().aminmax()) for name, p in model.named_parameters() if p.numel()}
    finite = torch.stack(list(extremes.values())).isfinite().all(1).tolist()
    broken = [name for name, is_finite in zip(extremes, finite, strict=True) if not is_finite]
    if broken:
        raise ValueError(
            f"weights must be finite, and {len(broken)} of {len(finite)} parameters hold NaN or infinity, the first "
            f"{broken[0]}: the training that made them diverged. Go on from an earlier checkpoint with a lower "
            "learning rate or stronger gradient clipping; of a model just loaded, look at its files and dtype"
        )
