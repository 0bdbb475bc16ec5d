"""Log-probabilities and entropies of chosen tokens from hidden states, in blocks, never [rows, vocabulary] at once.

Shapes: R rows (one per token to score), D hidden size, V vocabulary, C rows or W vocabulary entries of one block.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK_ELEMENTS = 1 << 24
"""Logits held at once: 64 MiB of float32. Backward needs up to three such buffers, forward two or three."""


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


def _entropy(logp: Tensor) -> Tensor:
    """-sum(p log p) per row, without a third buffer; -inf entries count 0."""
    return -torch.bmm(logp.exp()[:, None, :], logp.clamp(min=torch.finfo(logp.dtype).min)[:, :, None])[:, 0, 0]


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, scale: Tensor,
        want_entropy: bool, block_elements: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        rows, vocabulary = hidden.shape[0], weight.shape[0]
        block = max(1, block_elements // vocabulary)
        logprob, entropy, log_total = (scale.new_zeros(rows) for _ in range(3))
        kept = None
        for start in range(0, rows, block):
            part = slice(start, start + block)
            logits = F.linear(hidden[part], weight, bias).to(scale.dtype).mul_(scale[part, None])
            chosen = logits.gather(1, target[part, None])[:, 0]
            if rows <= block or want_entropy:
                logp = F.log_softmax(logits, dim=-1)
                logprob[part] = logp.gather(1, target[part, None])[:, 0]
                log_total[part] = chosen - logprob[part]
                if want_entropy:
                    del logits
                    entropy[part] = _entropy(logp)
                kept = logp if rows <= block else None
            else:
                log_total[part] = logits.logsumexp(dim=-1)
                logprob[part] = chosen - log_total[part]
        ctx.save_for_backward(hidden, weight, bias, target, scale, log_total, entropy, kept)
        ctx.block_elements = block_elements
        ctx.set_materialize_grads(False)
        if not want_entropy:
            ctx.mark_non_differentiable(entropy)
        return logprob, entropy

    @staticmethod
    def backward(ctx: Any, grad_logprob: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, target, scale, log_total, entropy, kept = ctx.saved_tensors
        vocabulary = weight.shape[0]
        block = vocabulary if kept is not None else max(1, ctx.block_elements // max(1, hidden.shape[0]))
        g_R = torch.zeros_like(scale) if grad_logprob is None else grad_logprob * scale
        h_R = None if grad_entropy is None else grad_entropy * scale
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        d_hidden = scale.new_zeros(hidden.shape) if need_hidden else None
        d_weight = torch.empty_like(weight) if need_weight else None
        d_bias = torch.empty_like(bias) if need_bias else None
        for start in range(0, vocabulary, block):
            part = slice(start, min(start + block, vocabulary))
            if kept is None:
                logits = F.linear(hidden, weight[part], None if bias is None else bias[part]).to(scale.dtype)
                logp = logits.mul_(scale[:, None]).sub_(log_total[:, None])
            else:
                logp = kept
            d_logits = _logit_gradient(logp, target - start, g_R, h_R, entropy).to(hidden.dtype)
            if d_hidden is not None:
                d_hidden += d_logits @ weight[part]
            if d_weight is not None:
                torch.mm(d_logits.T, hidden, out=d_weight[part])
            if d_bias is not None:
                d_bias[part] = d_logits.sum(0)
        d_hidden = None if d_hidden is None else d_hidden.to(hidden.dtype)
        return d_hidden, d_weight, d_bias, None, None, None, None


def _logit_gradient(logp_RW: Tensor, target_R: Tensor, g_R: Tensor, h_R: Tensor | None, entropy_R: Tensor) -> Tensor:
    """g (onehot - p) - h p (log p + H) over one block of the vocabulary, [R, W]; overwrites nothing."""
    p_RW = logp_RW.exp()
    if h_R is None:
        d_RW = p_RW.mul_(-g_R[:, None])
    else:
        d_RW = p_RW.mul_((logp_RW + entropy_R[:, None]).mul_(-h_R[:, None]).sub_(g_R[:, None]))
    width = logp_RW.shape[1]
    inside_R = (target_R >= 0) & (target_R < width)
    return d_RW.scatter_add_(1, target_R.clamp(0, width - 1)[:, None], g_R.where(inside_R, 0)[:, None])
