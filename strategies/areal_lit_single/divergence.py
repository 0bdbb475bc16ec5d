"""Divergence of one model's next-token distribution from another's, over the whole vocabulary in blocks.

Three passes over blocks of both heads: partition functions, the sum, and in backward the gradient. With x the policy's
log-probs, p their exponentials and f(x, y) what an entry adds, the gradient in the logit of entry v is
f'(x_v) - p_v sum_w f'(x_w).

Shapes: R rows, D and E the hidden sizes of policy and teacher, V vocabulary, W vocabulary entries of one block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from areal_lit.token_batch import Divergence
from areal_lit_single.logprobs import BLOCK_ELEMENTS, Blocks, HeadGradients, running_softmax, wide

LOWEST_LOGPROB = -1e4
"""Stands for the log-prob of an impossible token: its exponential is 0, and its product with that is no NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """What a model's logits are computed from.

    Args:
        scale_R: one over the temperature, times the model's own logit scale.
    """

    hidden_RD: Tensor
    weight_VD: Tensor
    bias_V: Tensor | None
    scale_R: Tensor

    def blocks(self, dtype: torch.dtype, block_elements: int) -> Blocks:
        return Blocks(self.hidden_RD, self.weight_VD, self.bias_V, self.scale_R.to(dtype), block_elements)


def vocabulary_divergence(
    policy: Predictions, teacher: Predictions, divergence: Divergence, *, block_elements: int = BLOCK_ELEMENTS
) -> Tensor:
    """sum over v of divergence(log policy(v), log teacher(v)) for each row, [R].

    Carries gradients to the policy's hidden states, weight and bias. In float32, in float64 for float64 inputs.

    Args:
        block_elements: logits of each model held at once, a few times over.
    """
    value_R: Tensor = _VocabularyDivergence.apply(
        policy.hidden_RD, policy.weight_VD, policy.bias_V, policy.scale_R, teacher, divergence, block_elements
    )
    return value_R


class _VocabularyDivergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor, teacher: Predictions,
        divergence: Divergence, block_elements: int,
    ) -> Tensor:  # fmt: skip
        policy = Predictions(hidden_RD=hidden, weight_VD=weight, bias_V=bias, scale_R=scale)
        both = _Both(policy, teacher, divergence, block_elements)
        value_R, slope_R = (torch.zeros_like(both.log_total_R) for _ in range(2))
        for _, _, value_RW, slope_RW in both:
            value_R += value_RW.sum(1)
            slope_R += slope_RW.sum(1)
        ctx.save_for_backward(slope_R)
        ctx.both = both
        return value_R

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (slope_R,) = ctx.saved_tensors
        both: _Both = ctx.both
        own = both.policy
        gradients = HeadGradients(own.hidden_RD, own.weight_VD, own.bias_V, both.dtype, ctx.needs_input_grad[:3])
        grad_R = grads[0] * own.scale_R.to(both.dtype)
        for part, logp_RW, _, slope_RW in both:
            gradients.add(part, (slope_RW - logp_RW.exp() * slope_R[:, None]) * grad_R[:, None])
        return *gradients.all, None, None, None, None


class _Both:
    """Block by block: part of the vocabulary; the policy's log-probs, what entries add, its slope in those, [R, W]."""

    def __init__(self, policy: Predictions, teacher: Predictions, divergence: Divergence, block_elements: int) -> None:
        self.policy, self.teacher, self.divergence, self.block_elements = policy, teacher, divergence, block_elements
        self.dtype = wide(policy.hidden_RD.dtype)
        self.log_total_R, self._log_total_teacher_R = (
            running_softmax(blocks, blocks.hidden.new_zeros(blocks.rows, 0, dtype=torch.long), False)[2]
            for blocks in self._blocks()
        )

    def _blocks(self) -> list[Blocks]:
        return [predictions.blocks(self.dtype, self.block_elements) for predictions in (self.policy, self.teacher)]

    def __iter__(self) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        for (part, own, _), (_, others, _) in zip(*self._blocks(), strict=True):
            logp_RW = (own - self.log_total_R[:, None]).clamp_(min=LOWEST_LOGPROB).requires_grad_()
            teacher_RW = (others - self._log_total_teacher_R[:, None]).clamp_(min=LOWEST_LOGPROB)
            with torch.enable_grad():
                value_RW = self.divergence(logp_RW, teacher_RW)
                (slope_RW,) = torch.autograd.grad(value_RW.sum(), logp_RW)
            yield part, logp_RW.detach(), value_RW.detach(), slope_RW
