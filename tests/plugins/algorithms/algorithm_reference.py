"""The pieces of algorithms again, in plain Python floats and loops over samples, for the tests to compare with.

Nothing here is shared with what it checks: no tensor operation, no packed layout. ``algorithm_papers`` puts them
together.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch

from areal_lit.token_batch import TokenBatch

POLICIES = {"behaviour": "logprob", "proximal": "proximal", "reference": "reference"}
"""Columns of log-probs by the name of their policy."""


@dataclass
class Token:
    """A loss token."""

    turn: int
    version: int
    logprob: float = 0.0
    behaviour: float = 0.0
    proximal: float = 0.0
    reference: float = 0.0
    value: float = 0.0
    turn_reward: float | None = None
    advantage: float = 0.0
    returns: float = 0.0


@dataclass
class Sample:
    """A sequence with at least one loss token."""

    group: int
    reward: float
    truncated: bool
    final_value: float
    tokens: list[Token] = field(default_factory=list)


def samples_of(batch: TokenBatch, logprob_T: torch.Tensor) -> list[Sample]:
    """A batch taken apart; what is not trained is left out."""
    column = {name: batch[name].tolist() for name in batch.columns}
    per_token = {name: column[source] for name, source in POLICIES.items() if source in column}
    per_token |= {"value": column["value"]} if "value" in column else {}
    per_token["logprob"] = logprob_T.tolist()
    finals = column.get("final_value", [0.0] * batch.num_segments)
    samples = [
        Sample(group=group, reward=reward, truncated=truncated, final_value=final)
        for group, reward, truncated, final in zip(
            column["group"], column["reward"], column["truncated"], finals, strict=True
        )
    ]
    for t, segment in enumerate(column["segment"]):
        if column["loss_mask"][t]:
            token = Token(turn=column["turn"][t], version=column["version"][t])
            token.turn_reward = column["turn_reward"][t] if column["turn_scored"][t] else None
            for name, values in per_token.items():
                setattr(token, name, values[t])
            samples[segment].tokens.append(token)
    return [sample for sample in samples if sample.tokens]


def all_tokens(samples: Sequence[Sample]) -> list[Token]:
    return [token for sample in samples for token in sample.tokens]


# --- advantages ----------------------------------------------------------------------------------


def compared(
    values: Sequence[float],
    groups: Sequence[Hashable],
    *,
    mean: str = "group",
    std: str = "group",
    others: bool = False,
    unbiased: bool = True,
    eps: float = 1e-6,
) -> list[float]:
    """Values centred and scaled, 0 where there is nothing to compare with."""

    def sets(level: str) -> dict[Hashable, list[float]]:
        found: dict[Hashable, list[float]] = {}
        for value, group in zip(values, groups, strict=True):
            found.setdefault(group if level.startswith("group") else None, []).append(value)
        return found

    centres = {key: (math.fsum(x), len(x), len(set(x)) < 2) for key, x in sets(mean).items()}
    scales = {key: _scale(x, std, unbiased) + eps for key, x in sets(std).items()}
    result = []
    for value, group in zip(values, groups, strict=True):
        total, count, is_constant = centres[group if mean == "group" else None]
        if mean == "none":
            centred = value
        elif is_constant:
            centred = 0.0
        else:
            centred = value - ((total - value) / (count - 1) if others else total / count)
        result.append(centred if std == "none" else centred / scales[group if std.startswith("group") else None])
    return result


def _scale(x: Sequence[float], std: str, unbiased: bool) -> float:
    """Infinite where a deviation is 0: what does not differ from its own set is worth nothing."""
    if std.endswith("_rms"):
        return math.sqrt(math.fsum(a * a for a in x) / len(x))
    if len(set(x)) < 2:
        return math.inf
    mean = math.fsum(x) / len(x)
    return math.sqrt(math.fsum((a - mean) ** 2 for a in x) / max(len(x) - unbiased, 1))


def overlong_penalty(length: int, *, max_length: int, buffer: int, factor: float) -> float:
    return min(0.0, max(-factor, -(length - (max_length - buffer)) / buffer * factor))


def to_go(sample: Sample, rewards: Sequence[float], *, gamma: float, turn_discount: float) -> list[float]:
    """What is still to come from each token, summed term by term."""
    result = []
    for i in range(len(sample.tokens)):
        discount, total = 1.0, 0.0
        for j in range(i, len(sample.tokens)):
            if j > i:
                discount *= gamma * (turn_discount if sample.tokens[j].turn != sample.tokens[j - 1].turn else 1.0)
            total += discount * rewards[j]
        result.append(total)
    return result


def steps_of(sample: Sample, by_turn: bool) -> list[list[int]]:
    """The indices of each step's tokens: of one token each, or of all tokens of a turn."""
    steps: dict[int, list[int]] = {}
    for i, token in enumerate(sample.tokens):
        steps.setdefault(token.turn if by_turn else i, []).append(i)
    return list(steps.values())


def estimate_advantages(
    sample: Sample, rewards: Sequence[float], *, gamma: float, lam: float, by_turn: bool
) -> list[float]:
    """GAE by its recursion, one sequence at a time; per loss token."""
    following = sample.final_value if sample.truncated else 0.0
    carried, result = 0.0, [0.0] * len(sample.tokens)
    for step in reversed(steps_of(sample, by_turn)):
        value = sample.tokens[step[0]].value
        carried = math.fsum(rewards[i] for i in step) + gamma * following - value + gamma * lam * carried
        following = value
        for i in step:
            result[i] = carried
    return result


# --- policies ------------------------------------------------------------------------------------


def proximal_logprob(token: Token, way: str, trained_version: int) -> float:
    """The log-prob of the policy one version before the trained one, recomputed or guessed from its neighbours."""
    if way in ("recompute", "compare"):
        return token.proximal
    behind = trained_version - token.version
    share = 1.0 if way == "current" or behind == 0 else min(1.0, max(0.0, (behind - 1) / behind))
    if way == "linear":
        return math.log((1 - share) * math.exp(token.behaviour) + share * math.exp(token.logprob))
    return token.behaviour + share * (token.logprob - token.behaviour)


def bernoulli_divergence(first: float, second: float) -> float:
    def kl(p: float, q: float) -> float:
        return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))

    p, q = math.exp(first), math.exp(second)
    return max(kl(p, q), kl(q, p))


def within_second_moment(log_ratios: Sequence[float], threshold: float, *, may_all_go: bool) -> list[bool]:
    """Drop the largest squares, equal ones together, until the mean of the rest is below the threshold."""
    kept = sorted(x * x for x in log_ratios)
    while kept and math.fsum(kept) / len(kept) >= threshold:
        rest = [square for square in kept if square != kept[-1]]
        if not rest and not may_all_go:
            break
        kept = rest
    return [bool(kept) and x * x <= kept[-1] for x in log_ratios]


# --- terms: (value, slope in what is trained) ----------------------------------------------------

Term = tuple[float, float]


def clip(log_ratio: float, advantage: float, low: float, high: float, dual: float | None = None) -> Term:
    ratio = math.exp(log_ratio)
    bounded = min(max(ratio, 1 - low), 1 + high)
    is_plain = -advantage * ratio >= -advantage * bounded
    value = -advantage * (ratio if is_plain else bounded)
    if dual is not None and advantage < 0 and value > -dual * advantage:
        return -dual * advantage, 0.0
    return value, value if is_plain else 0.0


def gate(log_ratio: float, advantage: float, tau_pos: float, tau_neg: float) -> Term:
    ratio = math.exp(log_ratio)
    tau = tau_pos if advantage > 0 else tau_neg
    sigmoid = 1 / (1 + math.exp(-tau * (ratio - 1)))
    return -advantage * 4 / tau * sigmoid, -advantage * 4 * sigmoid * (1 - sigmoid) * ratio


def divergence(x: float, estimator: str) -> Term:
    """The estimate of a KL from one log-ratio, and the slope that descends on it."""
    k3 = math.exp(-x) - 1 + x
    return {"k1": (x, 1.0), "k2": (x * x / 2, x), "k3": (k3, 1 - math.exp(-x)), "k3+": (k3, x)}[estimator]


def stand_in_entropy(logprob: float) -> Term:
    """Of a token after which the model is the less sure, the rarer it was: the true one is no function of log-probs."""
    return logprob * logprob / 2, logprob


def value_error(value: float, old: float, target: float, *, value_clip: float | None, shape: str) -> Term:
    plain = _halved(value - target, shape)
    if value_clip is None:
        return plain
    near = min(max(value, old - value_clip), old + value_clip)
    clipped, _ = _halved(near - target, shape)
    return (clipped, 0.0) if clipped > plain[0] else plain


def _halved(error: float, shape: str) -> Term:
    if shape == "huber" and abs(error) > 10:
        return 10 * (abs(error) - 5), math.copysign(10, error)
    return error * error / 2, error
