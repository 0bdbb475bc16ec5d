"""The critic's loss per token.

Shapes: T packed tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from areal_lit.token_batch import masked_metric
from areal_lit_algorithms.pieces.ratios import masked

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.types import Metric

ValueShape = Literal["squared", "huber"]

HUBER_DELTA = 10.0


def clipped_value(
    value_T: Tensor,
    old_T: Tensor,
    return_T: Tensor,
    mask_T: Tensor,
    *,
    value_clip: float | None,
    shape: ValueShape = "squared",
) -> tuple[Tensor, tuple[Metric, ...]]:
    """The larger of the halved errors of the new value, and of the new value kept near the old one; [T].

    Args:
        value_clip: how near; None leaves the new value as it is.
        shape: ``squared``, or ``huber``: linear beyond an error of 10.
    """
    value_T, old_T, return_T = (masked(x.to(value_T.dtype), mask_T) for x in (value_T, old_T, return_T))
    loss_T = _halved(value_T - return_T, shape)
    metrics = [masked_metric("value_error", loss_T, mask_T)]
    if value_clip is not None:
        near_T = old_T + (value_T - old_T).clamp(-value_clip, value_clip)
        clipped_T = _halved(near_T - return_T, shape)
        metrics.append(masked_metric("value_clipped", (clipped_T > loss_T).float(), mask_T))
        loss_T = loss_T.maximum(clipped_T)
    return loss_T, tuple(metrics)


def _halved(error_T: Tensor, shape: ValueShape) -> Tensor:
    squared_T = error_T.square() / 2
    if shape == "squared":
        return squared_T
    size_T = error_T.abs()
    return squared_T.where(size_T <= HUBER_DELTA, HUBER_DELTA * (size_T - HUBER_DELTA / 2))
