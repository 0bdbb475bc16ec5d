"""Policy losses per token, unweighted, with the numbers that show their clips and gates at work.

Shapes: T packed tokens. ``log_ratio`` is that of the current policy to an older one, with gradient, 0 where masked;
the sign: descending on ``-A r`` raises the log-prob of tokens with a positive advantage A.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_lit.token_batch import masked_metric
from areal_lit_algorithms.pieces.ratios import ratio

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.types import Metric

LossAndMetrics = tuple["Tensor", tuple["Metric", ...]]


def clipped_ratio(
    log_ratio_T: Tensor,
    advantage_T: Tensor,
    mask_T: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    clip_dual: float | None = None,
) -> LossAndMetrics:
    """PPO's pessimistic ``max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))``, [T] (arXiv 1707.06347).

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


def clipped_weight(
    logprob_T: Tensor, log_ratio_T: Tensor, advantage_T: Tensor, mask_T: Tensor, *, clip_low: float, clip_high: float
) -> LossAndMetrics:
    """``-sg(clip(r, 1 - clip_low, 1 + clip_high)) A logprob``: no token loses its gradient, [T] (arXiv 2506.13585)."""
    ratio_T = ratio(log_ratio_T.detach())
    clipped_T = ratio_T.clamp(1 - clip_low, 1 + clip_high)
    metrics = (
        masked_metric("clip_low", (ratio_T < clipped_T).float(), mask_T),
        masked_metric("clip_high", (ratio_T > clipped_T).float(), mask_T),
    )
    return -clipped_T * advantage_T * logprob_T, metrics


def soft_gate(
    log_ratio_T: Tensor, advantage_T: Tensor, mask_T: Tensor, *, tau_pos: float, tau_neg: float
) -> LossAndMetrics:
    """``-A (4 / tau) sigmoid(tau (r - 1))``, tau by the sign of A, [T] (arXiv 2511.20347).

    The gate's slope in r is 1 at r = 1 and falls off on both sides; ``gate_slope`` is its mean over loss tokens.
    """
    ratio_T = ratio(log_ratio_T)
    tau_T = ratio_T.new_full((), tau_pos).where(advantage_T > 0, tau_neg)
    x_T = tau_T * (ratio_T - 1)
    # of the smaller tail, so that 1 - gate keeps its digits far from the old policy
    gate_T = (1 - (-x_T).sigmoid()).where(x_T > 0, x_T.sigmoid())
    slope_T = (4 * gate_T * (1 - gate_T)).detach()
    return -advantage_T * 4 / tau_T * gate_T, (masked_metric("gate_slope", slope_T, mask_T),)


def check_clips(clip_low: float, clip_high: float, clip_dual: float | None = None) -> None:
    """Raise ValueError for bounds that leave no room around a ratio of 1."""
    if not 0 < clip_low <= 1:
        raise ValueError(f"clip_low must be in (0, 1], got {clip_low}; the ratio is kept above 1 - clip_low")
    if not clip_high > 0:
        raise ValueError(f"clip_high must be > 0, got {clip_high}; the ratio is kept below 1 + clip_high")
    if clip_dual is not None and not clip_dual > 1:
        raise ValueError(f"clip_dual must be > 1 (or null for off), got {clip_dual}; the paper takes 3")
