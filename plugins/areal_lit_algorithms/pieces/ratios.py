"""Ratios between two policies of a token: behaviour, proximal or current.

Shapes: T packed tokens. Log-ratios are 0 outside the mask, so that no masked value reaches an exponential.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.token_batch import TokenBatch


def masked(x_T: Tensor, mask_T: Tensor) -> Tensor:
    """``x`` where the mask holds, 0 elsewhere, whatever stood there; [T]."""
    return x_T.where(mask_T, x_T.new_zeros(()))


def log_ratio(logprob_T: Tensor, old_T: Tensor, mask_T: Tensor) -> Tensor:
    """``logprob - old`` on masked-in tokens, 0 elsewhere, with the gradient of ``logprob``; [T]."""
    return masked(logprob_T, mask_T) - masked(old_T.to(logprob_T.dtype), mask_T)


def ratio(log_ratio_T: Tensor) -> Tensor:
    """``exp(log_ratio)``, the exponent kept within +-20 so that neither it nor its gradient overflows; [T]."""
    return log_ratio_T.clamp(-20.0, 20.0).exp()


def sequence_log_ratio(log_ratio_T: Tensor, batch: TokenBatch) -> Tensor:
    """The mean log-ratio over a sequence's loss tokens on each of its tokens, with the token's own gradient; [T].

    Its exponential is GSPO's ratio (arXiv 2507.18071, GSPO-token): summed over a sequence with equal weights, the
    gradient is that of the sequence's ratio.
    """
    mean_T = batch.to_tokens(batch.segment_mean(log_ratio_T.detach().double())).to(log_ratio_T.dtype)
    return mean_T + log_ratio_T - log_ratio_T.detach()
