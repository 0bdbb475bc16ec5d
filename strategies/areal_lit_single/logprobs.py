"""Log-probabilities and entropies of chosen tokens from hidden states, in blocks, never [rows, vocabulary] at once.

A block is all rows by W entries of the vocabulary, so the head's weight is read once per pass and its gradient written
once; a running maximum and sum give the softmax. Blocks share two buffers: fresh pages cost more than the arithmetic.

Shapes: R rows (one per token to score), K targets of a row, D hidden size, V vocabulary, W vocabulary entries of one
block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    target: Tensor,
    scale_R: Tensor,
    *,
    entropy: bool = False,
    block_elements: int = BLOCK_ELEMENTS,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(scale * (W h + b))[target], in the shape of the targets, and, if asked for, that entropy, [R].

    Both carry gradients to hidden states, weight and bias. Computed in float32, in float64 for float64 inputs.

    Args:
        target: token ids, [R] or [R, K].
        scale_R: one over the temperature (times the model's own logit scale), no gradient.
        block_elements: logits held at once; at or below it they are kept for backward, above it computed again.
    """
    target_RK = target if target.dim() == 2 else target[:, None]
    logprob_RK, entropy_R = _TokenLogprobs.apply(
        hidden_RD, weight_VD, bias_V, target_RK, scale_R.to(wide(hidden_RD.dtype)), entropy, block_elements
    )
    return logprob_RK.view(target.shape), entropy_R if entropy else None


@torch.no_grad()
def likeliest_tokens(
    hidden_RD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    scale_R: Tensor,
    k: int,
    *,
    block_elements: int = BLOCK_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """The k likeliest tokens of each row in falling order, and their log-probs, both [R, k]; without gradient."""
    blocks = Blocks(hidden_RD, weight_VD, bias_V, scale_R.to(wide(hidden_RD.dtype)), block_elements)
    best_RK, token_RK = blocks.scale.new_empty(blocks.rows, 0), hidden_RD.new_empty(blocks.rows, 0, dtype=torch.long)
    log_total_R = torch.full_like(blocks.scale, float("-inf"))
    for part, logits, _ in blocks:
        log_total_R = log_total_R.logaddexp(logits.logsumexp(1))
        value_RK, column_RK = logits.topk(min(k, logits.shape[1]), dim=1)
        best_RK, token_RK = torch.cat([best_RK, value_RK], 1), torch.cat([token_RK, column_RK + part.start], 1)
        best_RK, kept_RK = best_RK.topk(min(k, best_RK.shape[1]), dim=1)
        token_RK = token_RK.gather(1, kept_RK)
    return token_RK, best_RK - log_total_R[:, None]


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


class Blocks:
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


def _in_block(target_RK: Tensor, part: slice) -> tuple[Tensor, Tensor]:
    """Column of each target within the block, and whether it is there, [R, K]."""
    inside_RK = (target_RK >= part.start) & (target_RK < part.stop)
    return (target_RK - part.start).clamp(0, part.stop - part.start - 1), inside_RK


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
            logprob = kept.gather(1, target)
            entropy = torch.zeros_like(scale)
            if want_entropy:
                entropy = -_dot(kept.exp(), kept.clamp_(min=torch.finfo(kept.dtype).min))
            log_total = entropy
        else:
            logprob, entropy, log_total = running_softmax(
                Blocks(hidden, weight, bias, scale, block_elements), target, want_entropy
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
        g_RK = torch.zeros_like(target, dtype=scale.dtype) if grad_logprob is None else grad_logprob * scale[:, None]
        g_R = g_RK.sum(1)
        h_R = None if grad_entropy is None else grad_entropy * scale
        gradients = HeadGradients(hidden, weight, bias, scale.dtype, ctx.needs_input_grad[:3])
        if kept is None:
            blocks = iter(Blocks(hidden, weight, bias, scale, ctx.block_elements))
        else:
            blocks = iter([(slice(0, weight.shape[0]), kept.clone(), torch.empty_like(kept))])
        for part, logits, spare in blocks:
            logp = logits if kept is not None else logits.sub_(log_total[:, None])
            d_logits = _logit_gradient(logp, spare, g_R, h_R, entropy)
            column_RK, inside_RK = _in_block(target, part)
            d_logits.scatter_add_(1, column_RK, g_RK.where(inside_RK, 0))
            gradients.add(part, d_logits)
        return *gradients.all, None, None, None, None


class HeadGradients:
    """Gradients of hidden states, weight and bias, as wanted, gathered from those of the logits block by block."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, wanted: Sequence[bool]
    ) -> None:
        self._hidden, self._weight = hidden, weight
        self._d_hidden = torch.zeros_like(hidden, dtype=dtype) if wanted[0] else None
        self._d_weight = torch.empty_like(weight) if wanted[1] else None
        self._d_bias = torch.empty_like(bias) if wanted[2] and bias is not None else None

    def add(self, part: slice, d_logits_RW: Tensor) -> None:
        """Take the gradient of one block's unscaled logits."""
        d_logits = d_logits_RW.to(self._hidden.dtype)
        if self._d_hidden is not None and self._d_hidden.dtype == d_logits.dtype:
            self._d_hidden.addmm_(d_logits, self._weight[part])
        elif self._d_hidden is not None:
            self._d_hidden += d_logits @ self._weight[part]
        if self._d_weight is not None:
            torch.mm(d_logits.T, self._hidden, out=self._d_weight[part])
        if self._d_bias is not None:
            torch.sum(d_logits, 0, out=self._d_bias[part])

    @property
    def all(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Once every block was added."""
        d_hidden = None if self._d_hidden is None else self._d_hidden.to(self._hidden.dtype)
        return d_hidden, self._d_weight, self._d_bias


def running_softmax(blocks: Blocks, target_RK: Tensor, want_entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Log-prob of each target, [R, K]; entropy (0 unless wanted) and log of the partition function, [R]."""
    lowest = torch.finfo(blocks.scale.dtype).min
    chosen_RK = torch.zeros_like(target_RK, dtype=blocks.scale.dtype)
    sum_R, moment_R = (torch.zeros_like(blocks.scale) for _ in range(2))
    max_R = torch.full_like(blocks.scale, lowest)
    for part, logits, spare in blocks:
        column_RK, inside_RK = _in_block(target_RK, part)
        chosen_RK = torch.where(inside_RK, logits.gather(1, column_RK), chosen_RK)
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
    return chosen_RK - max_R[:, None] - log_sum_R[:, None], entropy_R, max_R + log_sum_R


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
