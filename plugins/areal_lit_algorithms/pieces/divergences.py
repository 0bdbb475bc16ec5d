"""Divergence of a policy from its teacher: what each entry of a vocabulary adds, and its sum over the likeliest tokens.

Shapes: T packed tokens, K of the teacher's likeliest tokens. With q the policy and p the teacher, in nats:

    reverse_kl       q log(q / p)                                    KL(q, p): seeks a mode of the teacher
    forward_kl       p log(p / q)                                    KL(p, q): covers all of the teacher
    jensen_shannon   beta p log(p / m) + (1 - beta) q log(q / m)     with m = beta p + (1 - beta) q, bounded

The last is the generalised Jensen-Shannon divergence of GKD (arXiv 2306.13649): symmetric at beta 1/2; divided by beta
it tends to ``forward_kl`` for beta to 0, divided by 1 - beta to ``reverse_kl`` for beta to 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from torch import Tensor

DivergenceKind = Literal["reverse_kl", "forward_kl", "jensen_shannon"]

LEAST_TAIL = 1e-6
"""Of the probability that all tokens but the likeliest have together; less is rounding of float32 log-probs."""


def contributions(kind: DivergenceKind, logprob: Tensor, teacher: Tensor, *, beta: float = 0.5) -> Tensor:
    """What entries of these log-probs add to the divergence; any shape, differentiable in the first."""
    if kind == "reverse_kl":
        return logprob.exp() * (logprob - teacher)
    if kind == "forward_kl":
        return teacher.exp() * (teacher - logprob)
    if kind == "jensen_shannon":
        mixture = (teacher + math.log(beta)).logaddexp(logprob + math.log1p(-beta))
        return beta * teacher.exp() * (teacher - mixture) + (1 - beta) * logprob.exp() * (logprob - mixture)
    raise ValueError(f"divergence must be one of {', '.join(get_args(DivergenceKind))}, got {kind!r}")


def topk_divergence(kind: DivergenceKind, logprob_TK: Tensor, teacher_TK: Tensor, *, beta: float = 0.5) -> Tensor:
    """The divergence between the likeliest tokens and, as one entry more, all others together; float64 [T].

    With that entry both are distributions, so this is 0 where they agree, below 0 by rounding alone, and at most the
    divergence over the whole vocabulary: merging entries only takes from it. Without it, moving probability out of the
    likeliest tokens would look like an improvement.
    """
    logprob_TK, teacher_TK = logprob_TK.double(), teacher_TK.double()
    named_T = contributions(kind, logprob_TK, teacher_TK, beta=beta).sum(-1)
    return named_T + contributions(kind, tail(logprob_TK), tail(teacher_TK), beta=beta)


def tail(logprob_TK: Tensor) -> Tensor:
    """Log-prob of any other token than those given, at least that of ``LEAST_TAIL``, [T]."""
    return (1 - logprob_TK.exp().sum(-1)).clamp(min=LEAST_TAIL).log()
