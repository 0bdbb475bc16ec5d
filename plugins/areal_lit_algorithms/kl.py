"""Estimators of the divergence from a reference, as loss terms.

Shapes: T packed tokens. With x = logprob - reference on tokens of the current policy, k2 = x^2 / 2 has the
gradient of the reverse KL in expectation, k3 = exp(-x) - 1 + x that of the forward KL; ``k3+`` has k3's value and k2's
gradient. k1 = x has zero mean gradient on-policy and is therefore no loss term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from areal_lit_algorithms.ratio import log_ratio, ratio

if TYPE_CHECKING:
    from torch import Tensor

KLEstimator = Literal["k2", "k3", "k3+"]


def kl_loss(
    logprob_T: Tensor, reference_T: Tensor, behaviour_T: Tensor, mask_T: Tensor, estimator: KLEstimator
) -> Tensor:
    """The estimate per token, times the ratio to the policy the token came from (no gradient through it), [T].

    The ratio is cut at 10: beyond, a token says more about the mismatch than about the divergence.
    """
    x_T = log_ratio(logprob_T, reference_T, mask_T)
    if estimator == "k2":
        value_T = x_T.square() / 2
    elif estimator == "k3":
        value_T = k3(x_T)
    elif estimator == "k3+":
        gradient_T = x_T.square() / 2
        value_T = k3(x_T.detach()) + gradient_T - gradient_T.detach()
    else:
        raise ValueError(
            f"kl_estimator must be k2, k3 or k3+ in the loss, got {estimator!r}; k1's gradient has zero mean on-policy"
        )
    return value_T * ratio(log_ratio(logprob_T.detach(), behaviour_T, mask_T)).clamp(max=10.0)


def k3(x_T: Tensor) -> Tensor:
    """``exp(-x) - 1 + x``, never negative."""
    return ratio(-x_T) - 1 + x_T
