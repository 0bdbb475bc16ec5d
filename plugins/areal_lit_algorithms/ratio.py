"""Ratios between the three policies of a token: behaviour, proximal, current.

Shapes: T packed tokens. Log-ratios are 0 outside the mask, so that no masked value reaches an exponential.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from areal_lit.token_batch import masked_metric

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.types import Metric


def log_ratio(logprob_T: Tensor, old_T: Tensor, mask_T: Tensor) -> Tensor:
    """``logprob - old`` on masked-in tokens, 0 elsewhere, with the gradient of ``logprob``; [T]."""
    zero = logprob_T.new_zeros(())
    return logprob_T.where(mask_T, zero) - old_T.to(logprob_T.dtype).where(mask_T, zero)


def ratio(log_ratio_T: Tensor) -> Tensor:
    """``exp(log_ratio)``, the exponent kept within +-20 so that neither it nor its gradient overflows; [T]."""
    return log_ratio_T.clamp(-20.0, 20.0).exp()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicy:
    """The off-policy weight ``exp(proximal - behaviour)``, without gradient, truncated at a cap.

    Args:
        weight_T: multiplies the loss; never enters a denominator.
        metrics: the untruncated weight's mean and the fraction that the cap cut.
    """

    weight_T: Tensor
    metrics: tuple[Metric, ...]


def off_policy(proximal_T: Tensor, behaviour_T: Tensor, mask_T: Tensor, cap: float | None) -> OffPolicy:
    """Importance weight that corrects the data's policy to the proximal one (decoupled PPO, arXiv 2110.00641).

    Args:
        cap: upper bound; bounds the variance for a bias toward smaller steps. None leaves the weight as it is.
    """
    weight_T = ratio(log_ratio(proximal_T.detach(), behaviour_T, mask_T))
    metrics = [masked_metric("off_policy_weight", weight_T, mask_T)]
    if cap is not None:
        metrics.append(masked_metric("off_policy_capped", (weight_T > cap).float(), mask_T))
        weight_T = weight_T.clamp(max=cap)
    return OffPolicy(weight_T=weight_T, metrics=tuple(metrics))
