"""Every algorithm again, in plain Python floats and loops over samples, for the tests to compare with.

Nothing here is shared with what it checks: no tensor operation, no packed layout.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from areal_lit.token_batch import TokenBatch


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
    per_token = {name: batch[name].tolist() for name in ("proximal", "reference", "value") if name in batch}
    result = []
    for segment in range(batch.num_segments):
        sample = Sample(
            group=int(batch["group"][segment]),
            reward=float(batch["reward"][segment]),
            truncated=bool(batch["truncated"][segment]),
            final_value=float(batch["final_value"][segment]) if "final_value" in batch else 0.0,
        )
        for t in range(batch.num_tokens):
            if int(batch["segment"][t]) == segment and bool(batch["loss_mask"][t]):
                sample.tokens.append(
                    Token(
                        turn=int(batch["turn"][t]),
                        version=int(batch["version"][t]),
                        logprob=float(logprob_T[t]),
                        behaviour=float(batch["logprob"][t]),
                        turn_reward=float(batch["turn_reward"][t]) if batch["turn_scored"][t] else None,
                        **{name: column[t] for name, column in per_token.items()},
                    )
                )
        if sample.tokens:
            result.append(sample)
    return result


def all_tokens(samples: Sequence[Sample]) -> list[Token]:
    return [token for sample in samples for token in sample.tokens]


# --- advantages ----------------------------------------------------------------------------------


def compared(
    values: Sequence[float], groups: Sequence[int], *, mean: str = "group", std: str = "group", others: bool = False
) -> list[float]:
    """Values centred and scaled, 0 where there is nothing to compare with."""
    result = []
    for i, (value, group) in enumerate(zip(values, groups, strict=True)):
        peers = [j for j, other in enumerate(groups) if other == group]
        centre_set = peers if mean == "group" else list(range(len(values)))
        if mean == "none":
            centred = value
        elif len({values[j] for j in centre_set}) < 2:
            centred = 0.0
        else:
            centred = value - statistics.fmean(values[j] for j in centre_set if not others or j != i)
        scale_set = [values[j] for j in (peers if std == "group" else range(len(values)))]
        scale = 1.0
        if std != "none":
            scale = (statistics.stdev(scale_set) if len(scale_set) > 1 else 0.0) + 1e-6
        result.append(centred / scale)
    return result


def give_rewards(samples: Sequence[Sample], **settings: object) -> None:
    """Advantages without a critic: what a sample's reward and its own and later turns' rewards are worth."""
    groups = [sample.group for sample in samples]
    worths = compared([sample.reward for sample in samples], groups, **settings)  # type: ignore[arg-type]
    turns = [(s.group, t) for s in samples for t in s.tokens if t.turn_reward is not None]
    turn_worths = compared([t.turn_reward for _, t in turns], [g for g, _ in turns], **settings)  # type: ignore[arg-type, misc]
    worth_of = {id(token): worth for (_, token), worth in zip(turns, turn_worths, strict=True)}
    for sample, worth in zip(samples, worths, strict=True):
        for i, token in enumerate(sample.tokens):
            token.advantage = worth + sum(worth_of.get(id(later), 0.0) for later in sample.tokens[i:])


def take_divergence(samples: Sequence[Sample], weight: float) -> None:
    """Subtract the k1 that is still to come."""
    for sample in samples:
        for i, token in enumerate(sample.tokens):
            token.advantage -= weight * sum(later.proximal - later.reference for later in sample.tokens[i:])


def whiten(samples: Sequence[Sample]) -> None:
    tokens = all_tokens(samples)
    for token, x in zip(
        tokens, compared([t.advantage for t in tokens], [0] * len(tokens), mean="batch", std="batch"), strict=True
    ):
        token.advantage = x


def estimate_advantages(
    sample: Sample, rewards: Sequence[float], *, gamma: float, lam: float, by_turn: bool
) -> list[float]:
    """GAE by its recursion, one sequence at a time; per loss token."""
    steps: list[list[int]] = []
    for i, token in enumerate(sample.tokens):
        known = next((s for s in steps if sample.tokens[s[0]].turn == token.turn), None) if by_turn else None
        if known is None:
            steps.append([i])
        else:
            known.append(i)
    following = sample.final_value if sample.truncated else 0.0
    carried, result = 0.0, [0.0] * len(sample.tokens)
    for step in reversed(steps):
        value = sample.tokens[step[0]].value
        carried = sum(rewards[i] for i in step) + gamma * following - value + gamma * lam * carried
        following = value
        for i in step:
            result[i] = carried
    return result


# --- losses: (value, slope in the current log-prob) ----------------------------------------------

Term = tuple[float, float]


def clip(log_ratio: float, advantage: float, low: float, high: float) -> Term:
    ratio = math.exp(log_ratio)
    bounded = min(max(ratio, 1 - low), 1 + high)
    if -advantage * ratio >= -advantage * bounded:
        return -advantage * ratio, -advantage * ratio
    return -advantage * bounded, 0.0


def gate(log_ratio: float, advantage: float, tau_pos: float, tau_neg: float) -> Term:
    ratio = math.exp(log_ratio)
    tau = tau_pos if advantage > 0 else tau_neg
    sigmoid = 1 / (1 + math.exp(-tau * (ratio - 1)))
    return -advantage * 4 / tau * sigmoid, -advantage * 4 * sigmoid * (1 - sigmoid) * ratio


def off_policy(token: Token, *, lower: float = 0.0, upper: float = 5.0, is_masked: bool = False) -> float:
    weight = math.exp(token.proximal - token.behaviour)
    if is_masked:
        return weight if lower <= weight <= upper else 0.0
    return min(max(weight, lower), upper)


def bernoulli_divergence(first: float, second: float) -> float:
    def kl(p: float, q: float) -> float:
        return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))

    p, q = math.exp(first), math.exp(second)
    return max(kl(p, q), kl(q, p))


def within_second_moment(log_ratios: Sequence[float], threshold: float) -> list[bool]:
    """Drop the largest squares, equal ones together, until the mean of the rest is below the threshold."""
    squares = [x * x for x in log_ratios]
    kept = sorted(squares)
    while kept and statistics.fmean(kept) >= threshold:
        rest = [square for square in kept if square != kept[-1]]
        if not rest:
            break
        kept = rest
    return [square <= kept[-1] for square in squares]


# --- aggregation ---------------------------------------------------------------------------------


def weights(samples: Sequence[Sample], aggregation: str, max_length: int = 1) -> list[list[float]]:
    num_tokens = len(all_tokens(samples))
    groups = {sample.group for sample in samples}
    result = []
    for sample in samples:
        n = len(sample.tokens)
        of_group = sum(len(other.tokens) for other in samples if other.group == sample.group)
        weight = {
            "token_mean": 1 / num_tokens,
            "sequence_mean": 1 / n / len(samples),
            "sequence_sum": 1 / len(samples),
            "group_mean": 1 / of_group / len(groups),
            "constant": 1 / (len(samples) * max_length),
        }[aggregation]
        result.append([weight] * n)
    return result


def total(samples: Sequence[Sample], aggregation: str, term: Callable[[Sample, Token], Term], max_length: int = 1):
    """The step's loss, and its slope in each loss token's log-prob, in order."""
    loss, slopes = 0.0, []
    for sample, row in zip(samples, weights(samples, aggregation, max_length), strict=True):
        for token, weight in zip(sample.tokens, row, strict=True):
            value, slope = term(sample, token)
            loss += weight * value
            slopes.append(weight * slope)
    return loss, slopes
