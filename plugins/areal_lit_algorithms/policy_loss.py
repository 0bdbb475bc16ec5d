"""Policy losses per token, unweighted, with the numbers that show them at work.

Shapes: T packed tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_lit.token_batch import masked_metric
from areal_lit_algorithms.ratio import ratio

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.types import Metric


def clipped_ratio(
    log_ratio_T: Tensor,
    advantage_T: Tensor,
    mask_T: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    clip_dual: float | None = None,
) -> tuple[Tensor, tuple[Metric, ...]]:
    """PPO's pessimistic loss ``max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))``, [T] (arXiv 1707.06347).

    The sign: descending on ``-A r`` raises the log-prob of tokens with a positive advantage.

    Args:
        clip_dual: for A < 0 the loss is at most ``-clip_dual A`` (arXiv 1912.09729); None is off.

    Returns:
        The loss, and the fractions of loss tokens that each bound holds back.
    """
    ratio_T = ratio(log_ratio_T)
    plain_T = -advantage_T * ratio_T
    clipped_T = -advantage_T * ratio_T.clamp(1 - clip_low, 1 + clip_high)
    loss_T = plain_T.maximum(clipped_T)
    metrics = [
        masked_metric("clip_low", ((clipped_T > plain_T) & (advantage_T < 0)).float(), mask_T),
        masked_metric("clip_high", ((clipped_T > plain_T) & (advantage_T > 0)).float(), mask_T),
    ]
    if clip_dual is not None:
        bound_T = -clip_dual * advantage_T
        is_bound_T = (advantage_T < 0) & (loss_T > bound_T)
        loss_T = bound_T.where(is_bound_T, loss_T)
        metrics.append(masked_metric("clip_dual", is_bound_T.float(), mask_T))
    return loss_T, tuple(metrics)


def check_clips(clip_low: float, clip_high: float, clip_dual: float | None) -> None:
    """Raise ValueError for bounds that leave no room around a ratio of 1."""
    if not 0 < clip_low <= 1:
        raise ValueError(f"clip_low must be in (0, 1], got {clip_low}; the ratio is kept above 1 - clip_low")
    if not clip_high > 0:
        raise ValueError(f"clip_high must be > 0, got {clip_high}; the ratio is kept below 1 + clip_high")
    if clip_dual is not None and not clip_dual > 1:
        raise ValueError(f"clip_dual must be > 1 (or null for off), got {clip_dual}; the paper takes 3")
