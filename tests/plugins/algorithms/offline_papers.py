"""Offline algorithms in plain Python, from log-probs or scores to the loss and its slope, as papers state them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from algorithm_papers import Total, total
from algorithm_reference import Sample, Term, all_tokens

# --- losses of a margin: (value, slope in the margin) --------------------------------------------


def sigmoid(margin: float, beta: float) -> Term:
    return math.log1p(math.exp(-beta * margin)), -beta / (1 + math.exp(beta * margin))


def ipo(margin: float, beta: float) -> Term:
    distance = margin - 1 / (2 * beta)
    return distance * distance, 2 * distance


def hinge(margin: float, beta: float) -> Term:
    return max(0.0, 1 - beta * margin), -beta if beta * margin < 1 else 0.0


LOSSES = {"sigmoid": sigmoid, "ipo": ipo, "hinge": hinge}


def preference_step(samples: Sequence[Sample], loss: str, beta: float) -> Total:
    """DPO's loss of samples two by two, the chosen one first; one that is left over has slope 0."""
    pairs = list(zip(samples[0::2], samples[1::2], strict=False))
    made = Total(slopes=[0.0] * len(all_tokens(samples)))
    place = 0
    for pair in pairs:
        shares = [1 / len(side.tokens) if loss == "ipo" else 1.0 for side in pair]
        chosen, rejected = (
            share * math.fsum(t.logprob - t.reference for t in side.tokens)
            for side, share in zip(pair, shares, strict=True)
        )
        value, slope = LOSSES[loss](chosen - rejected, beta)
        made.loss += value / len(pairs)
        for side, share, sign in zip(pair, shares, (1.0, -1.0), strict=True):
            for _ in side.tokens:
                made.slopes[place] = sign * share * slope / len(pairs)
                place += 1
    made.size = made.loss
    return made


def reward_model_step(scores: Sequence[tuple[float, float]]) -> tuple[float, list[float]]:
    """Bradley and Terry's loss of pairs of scores, the chosen one's first, and its slope in each score."""
    loss, slopes = 0.0, []
    for chosen, rejected in scores:
        value, slope = sigmoid(chosen - rejected, 1.0)
        loss += value / len(scores)
        slopes += [slope / len(scores), -slope / len(scores)]
    return loss, slopes


def imitation_step(samples: Sequence[Sample], *, aggregation: str, max_length: int | None = None) -> Total:
    """Cross entropy of what is to be imitated."""
    return total(samples, aggregation, lambda _, token: (-token.logprob, -1.0), max_length)
