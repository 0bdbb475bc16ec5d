"""Log-probabilities and entropies of chosen tokens from hidden states, in blocks, never [rows, vocabulary] at once.

A block is all rows by W entries of the vocabulary, so the head's weight is read once per pass and its gradient written
once; a running maximum and sum give the softmax. Blocks share two buffers: fresh pages cost more than the arithmetic.

Shapes: R rows (one per token to score), D hidden size, V vocabulary, W vocabulary entries of one block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK_ELEMENTS = 1 << 24
"""Logits held at once, in each of two buffers: 64 MiB of float32."""


def token_logprobs(
    hidden_RD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    target_R: Tensor,
    scale_R: Tensor,
    *,
    entropy: bool = False,
    block_elements: int = BLOCK_ELEMENTS,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(scale * (W h + b))[target] and, if asked for, the entropy of that distribution, both [R].

    Both carry gradients to hidden states, weight and bias. Computed in float32, in float64 for float64 inputs.

    Args:
        scale_R: one over the temperature (times the model's own logit scale), no gradient.
        block_elements: logits held at once; at or below it they are kept for backward, above it computed again.
    """
    logprob_R, entropy_R = _TokenLogprobs.apply(
        hidden_RD, weight_VD, bias_V, target_R, scale_R.to(_wide(hidden_RD.dtype)), entropy, block_elements
    )
    return logprob_R, entropy_R if entropy else None


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


class _Blocks:
    """Scaled logits block by block, each in the same buffer; ``spare`` is a second one for the caller."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor, block_elements: int) -> None:
        self.hidden, self.weight, self.bias, self.scale = hidden, weight, bias, scale
        self.rows, self.vocabulary = hidden.shape[0], weight.shape[0]
        self.width = min(self.vocabulary, max(1, block_elements // max(1, self.rows)))
        self._buffers = scale.new_empty(2, self.rows * self.width)

    def __iter__(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(part of the vocabulary, its logits [R, W], spare [R, W]); valid until the next one."""
        for start in range(0, self.vocabulary, self.width):
            part = slice(start, min(start + self.width, self.vocabulary))
            width = part.stop - part.start
            logits, spare = (buffer[: self.rows * width].view(self.rows, width) for buffer in self._buffers)
            if self.bias is None and self.hidden.dtype == logits.dtype:
                torch.mm(self.hidden, self.weight[part].T, out=logits)
            else:
                logits.copy_(F.linear(self.hidden, self.weight[part], None if self.bias is None else self.bias[part]))
            yield part, logits.mul_(self.scale[:, None]), spare


def _in_block(target_R: Tensor, part: slice) -> tuple[Tensor, Tensor]:
    """Column of each row's target within the block, and whether it is there."""
    inside_R = (target_R >= part.start) & (target_R < part.stop)
    return (target_R - part.start).clamp(0, part.stop - part.start - 1), inside_R


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, scale: Tensor,
        want_entropy: bool, block_elements: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        kept = None
        if hidden.shape[0] * weight.shape[0] <= block_elements:
            logits = F.linear(hidden, weight, bias).to(scale.dtype).mul_(scale[:, None])
            kept = F.log_softmax(logits, dim=-1)
            logprob = kept.gather(1, target[:, None])[:, 0]
            entropy = torch.zeros_like(scale)
            if want_entropy:
                entropy = -_dot(kept.exp(), kept.clamp_(min=torch.finfo(kept.dtype).min))
            log_total = entropy
        else:
            logprob, entropy, log_total = _running_softmax(
                _Blocks(hidden, weight, bias, scale, block_elements), target, want_entropy
            )
        ctx.save_for_backward(hidden, weight, bias, target, scale, log_total, entropy, kept)
        ctx.block_elements = block_elements
        ctx.set_materialize_grads(False)
        if not want_entropy:
            ctx.mark_non_differentiable(entropy)
        return logprob, entropy

    @staticmethod
    def backward(ctx: Any, grad_logprob: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, target, scale, log_total, entropy, kept = ctx.saved_tensors
        g_R = torch.zeros_like(scale) if grad_logprob is None else grad_logprob * scale
        h_R = None if grad_entropy is None else grad_entropy * scale
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        d_hidden = scale.new_zeros(hidden.shape) if need_hidden else None
        d_weight = torch.empty_like(weight) if need_weight else None
        d_bias = torch.empty_like(bias) if need_bias else None
        if kept is None:
            blocks = iter(_Blocks(hidden, weight, bias, scale, ctx.block_elements))
        else:
            blocks = iter([(slice(0, weight.shape[0]), kept.clone(), torch.empty_like(kept))])
        for part, logits, spare in blocks:
            logp = logits if kept is not None else logits.sub_(log_total[:, None])
            d_logits = _logit_gradient(logp, spare, g_R, h_R, entropy)
            column_R, inside_R = _in_block(target, part)
            d_logits.scatter_add_(1, column_R[:, None], g_R.where(inside_R, 0)[:, None])
            d_logits = d_logits.to(hidden.dtype)
            if d_hidden is not None and d_hidden.dtype == d_logits.dtype:
                d_hidden.addmm_(d_logits, weight[part])
            elif d_hidden is not None:
                d_hidden += d_logits @ weight[part]
            if d_weight is not None:
                torch.mm(d_logits.T, hidden, out=d_weight[part])
            if d_bias is not None:
                torch.sum(d_logits, 0, out=d_bias[part])
        d_hidden = None if d_hidden is None else d_hidden.to(hidden.dtype)
        return d_hidden, d_weight, d_bias, None, None, None, None


def _running_softmax(blocks: _Blocks, target_R: Tensor, want_entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Log-prob of each target, entropy (0 unless wanted) and log of the partition function, [R]."""
    lowest = torch.finfo(blocks.scale.dtype).min
    chosen_R, sum_R, moment_R = (torch.zeros_like(blocks.scale) for _ in range(3))
    max_R = torch.full_like(blocks.scale, lowest)
    for part, logits, spare in blocks:
        column_R, inside_R = _in_block(target_R, part)
        chosen_R = torch.where(inside_R, logits.gather(1, column_R[:, None])[:, 0], chosen_R)
        new_max_R = torch.maximum(max_R, logits.amax(1))
        shrink_R = (max_R - new_max_R).exp()
        moment_R = shrink_R * (moment_R + sum_R * (max_R - new_max_R))
        logits.sub_(new_max_R[:, None])
        torch.exp(logits, out=spare)
        sum_R = shrink_R * sum_R + spare.sum(1)
        max_R = new_max_R
        if want_entropy:
            moment_R = moment_R + _dot(spare, logits.clamp_(min=lowest))
    log_sum_R = sum_R.log()
    entropy_R = log_sum_R - moment_R / sum_R if want_entropy else torch.zeros_like(log_sum_R)
    return chosen_R - max_R - log_sum_R, entropy_R, max_R + log_sum_R


def _logit_gradient(logp_RW: Tensor, spare_RW: Tensor, g_R: Tensor, h_R: Tensor | None, entropy_R: Tensor) -> Tensor:
    """-g p - h p (log p + H) for one block, without the targets' own term, in ``spare_RW``; overwrites ``logp_RW``."""
    p_RW = torch.exp(logp_RW, out=spare_RW)
    if h_R is None:
        return p_RW.mul_(-g_R[:, None])
    logp_RW.clamp_(min=torch.finfo(logp_RW.dtype).min)
    return p_RW.mul_(logp_RW.add_(entropy_R[:, None]).mul_(-h_R[:, None]).sub_(g_R[:, None]))


def _dot(x_RW: Tensor, y_RW: Tensor) -> Tensor:
    """Row by row, without a third buffer, [R]."""
    return torch.bmm(x_RW[:, None, :], y_RW[:, :, None])[:, 0, 0]
