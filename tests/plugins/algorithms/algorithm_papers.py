"""Whole algorithms in plain Python, from rewards to the loss and its slope in what is trained, as papers state them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any

import algorithm_reference as reference
from algorithm_reference import Sample, Term, Token, all_tokens
from published_settings import COMMON, PUBLISHED

from areal_lit_algorithms.pieces.normalisation import Normaliser


@dataclass
class Total:
    """A step's loss, its slope for each loss token in order, and the sum of its terms' sizes, by which both are judged.

    ``advantages`` are those of the loss tokens.
    """

    loss: float = 0.0
    size: float = 0.0
    slopes: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)


def policy_step(name: str, samples: Sequence[Sample], *, step: int, **options: Any) -> Total:
    """What the policy descends on.

    Args:
        step: the proximal policy's version; the one being trained is the next.
        options: as the constructor takes them.
    """
    paper = SimpleNamespace(**{**COMMON, **PUBLISHED[name], "step": step, **options})
    give_advantages(paper, samples)
    for token in all_tokens(samples):
        token.proximal = reference.proximal_logprob(token, paper.proximal, step + 1)
    loss_term = _TERMS[paper.term](paper, samples)

    def term(sample: Sample, token: Token) -> Term:
        value, slope = loss_term(sample, token)
        weight = off_policy_weight(paper, sample, token)
        value, slope = weight * value, weight * slope
        if paper.kl_weight and paper.kl_in == "loss":
            k, k_slope = reference.divergence(token.logprob - token.reference, paper.kl_estimator)
            weight = paper.kl_weight * min(math.exp(token.logprob - token.behaviour), 10.0)
            value, slope = value + weight * k, slope + weight * k_slope
        if paper.entropy_weight:
            entropy, entropy_slope = reference.stand_in_entropy(token.logprob)
            value, slope = value - paper.entropy_weight * entropy, slope - paper.entropy_weight * entropy_slope
        return value, slope

    return total(samples, paper.aggregation, term, paper.max_length)


def critic_step(samples: Sequence[Sample], new_values: Sequence[float], **options: Any) -> Total:
    """What ppo's critic descends on, from its old values and, in order, new values of the loss tokens."""
    paper = SimpleNamespace(**{**COMMON, **PUBLISHED["ppo"], **options})
    give_advantages(paper, samples)
    new = dict(zip(map(id, all_tokens(samples)), new_values, strict=True))

    def term(sample: Sample, token: Token) -> Term:
        return reference.value_error(
            new[id(token)], token.value, token.returns, value_clip=paper.value_clip, shape=paper.value_loss
        )

    return total(samples, paper.aggregation, term, paper.max_length)


# --- advantages ----------------------------------------------------------------------------------


def give_advantages(paper: SimpleNamespace, samples: Sequence[Sample]) -> None:
    """Sets each token's advantage, and with a critic what the critic learns."""
    for sample, rewards in zip(samples, token_rewards(paper, samples), strict=True):
        if not hasattr(paper, "lam"):
            gamma = getattr(paper, "gamma", 1.0)
            advantages = reference.to_go(sample, rewards, gamma=gamma, turn_discount=paper.turn_discount)
        else:
            advantages = _estimated(paper, sample, rewards, paper.lam)
            critics = _estimated(paper, sample, rewards, paper.lam if paper.critic_lam is None else paper.critic_lam)
            for step in reference.steps_of(sample, paper.step_level == "turn"):
                for i in step:
                    sample.tokens[i].returns = sample.tokens[step[0]].value + critics[i]
        for token, advantage in zip(sample.tokens, advantages, strict=True):
            token.advantage = advantage
    if paper.advantage_norm is not None:
        tokens = [(sample.group, token) for sample in samples for token in sample.tokens]
        normalised = _normalised([t.advantage for _, t in tokens], [g for g, _ in tokens], paper.advantage_norm)
        for (_, token), advantage in zip(tokens, normalised, strict=True):
            token.advantage = advantage


def token_rewards(paper: SimpleNamespace, samples: Sequence[Sample]) -> list[list[float]]:
    """What each token earns: a sample's worth with its last, a turn's with the turn's last, less its divergence."""
    worths = _normalised([_shaped(paper, s) for s in samples], [s.group for s in samples], paper.reward_norm)
    result = [[0.0] * len(sample.tokens) for sample in samples]
    turns = [
        (s, i) for s, sample in enumerate(samples) for i, t in enumerate(sample.tokens) if t.turn_reward is not None
    ]
    turn_rewards = [samples[s].tokens[i].turn_reward or 0.0 for s, i in turns]
    turn_worths = _normalised(turn_rewards, [samples[s].group for s, _ in turns], paper.step_norm or paper.reward_norm)
    for (s, i), worth in zip(turns, turn_worths, strict=True):
        result[s][i] += worth
    for sample, rewards, worth in zip(samples, result, worths, strict=True):
        rewards[-1] += paper.outcome_weight * worth
        if paper.kl_weight and paper.kl_in == "reward":
            is_recomputed = (paper.decoupled or paper.old == "proximal") and paper.proximal in ("recompute", "compare")
            for i, token in enumerate(sample.tokens):
                policy = token.proximal if is_recomputed else token.behaviour
                rewards[i] -= paper.kl_weight * reference.divergence(policy - token.reference, paper.kl_estimator)[0]
    return result


def _shaped(paper: SimpleNamespace, sample: Sample) -> float:
    shaping, reward = paper.reward_shaping, sample.reward
    if shaping.overlong is not None:
        reward += reference.overlong_penalty(len(sample.tokens), **asdict(shaping.overlong))
    reward = (reward + shaping.reward_bias) * shaping.reward_scaling
    bound = math.inf if shaping.reward_clip is None else shaping.reward_clip
    return min(max(reward, -bound), bound)


def _normalised(values: Sequence[float], groups: Sequence[int], by: Normaliser) -> list[float]:
    return reference.compared(
        values, groups, mean=by.mean_level, std=by.std_level, others=by.leave_one_out, unbiased=by.unbiased_std,
        eps=by.eps,
    )  # fmt: skip


def _estimated(paper: SimpleNamespace, sample: Sample, rewards: Sequence[float], lam: Any) -> list[float]:
    by_turn = paper.step_level == "turn"
    length = len(reference.steps_of(sample, by_turn))
    if not isinstance(lam, float | int):
        lam = max(0.0, 1 - 1 / (lam.alpha * length)) if lam.q is None else lam.q ** (1 / max(length - 1, 1))
    return reference.estimate_advantages(sample, rewards, gamma=paper.gamma, lam=lam, by_turn=by_turn)


# --- loss terms ----------------------------------------------------------------------------------


def off_policy_weight(paper: SimpleNamespace, sample: Sample, token: Token) -> float:
    """How much a token counts that another policy drew."""
    rejection = paper.rejection
    weight = math.exp(token.proximal - token.behaviour) if paper.decoupled else 1.0
    if rejection is None or (not paper.decoupled and (rejection.action == "clamp" or paper.old == "behaviour")):
        return weight
    each = [_distance(rejection.metric, t) for t in (sample.tokens if rejection.level == "sequence" else [token])]
    statistic = {"sum": math.fsum(each), "mean": math.fsum(each) / len(each), "max": max(each)}[rejection.aggregate]
    statistic = math.exp(statistic) if rejection.metric == "ratio" else statistic
    lower, upper = (
        math.copysign(math.inf, s) if b is None else b for s, b in ((-1, rejection.lower), (1, rejection.upper))
    )
    if rejection.action == "clamp":
        return min(max(statistic, lower), upper)
    cap = math.inf if rejection.weight_cap is None else rejection.weight_cap
    return min(weight, cap) if lower <= statistic <= upper else 0.0


def _distance(metric: str, token: Token) -> float:
    if metric == "binary_kl":
        return reference.bernoulli_divergence(token.proximal, token.behaviour)
    log_ratio = token.proximal - token.behaviour
    return log_ratio if metric == "ratio" else reference.divergence(-log_ratio, metric)[0]


LossTerm = Callable[[Sample, Token], Term]


def _old(paper: SimpleNamespace, token: Token) -> float:
    return token.proximal if paper.decoupled or paper.old == "proximal" else token.behaviour


def _clip(paper: SimpleNamespace, samples: Sequence[Sample]) -> LossTerm:
    bounds = (paper.clip_low, paper.clip_high, paper.clip_dual)
    return lambda _, t: reference.clip(t.logprob - _old(paper, t), t.advantage, *bounds)


def _sequence_clip(paper: SimpleNamespace, samples: Sequence[Sample]) -> LossTerm:
    bounds = (paper.clip_low, paper.clip_high, paper.clip_dual)
    mean = {id(s): math.fsum(t.logprob - _old(paper, t) for t in s.tokens) / len(s.tokens) for s in samples}
    return lambda s, t: reference.clip(mean[id(s)], t.advantage, *bounds)


def _log_prob(paper: SimpleNamespace, samples: Sequence[Sample]) -> LossTerm:
    return lambda _, t: (-t.advantage * t.logprob, -t.advantage)


def _gate(paper: SimpleNamespace, samples: Sequence[Sample]) -> LossTerm:
    return lambda _, t: reference.gate(t.logprob - _old(paper, t), t.advantage, paper.tau_pos, paper.tau_neg)


def _weight(paper: SimpleNamespace, samples: Sequence[Sample]) -> LossTerm:
    def term(_: Sample, token: Token) -> Term:
        ratio = math.exp(token.logprob - _old(paper, token))
        slope = -min(max(ratio, 1 - paper.clip_low), 1 + paper.clip_high) * token.advantage
        return slope * token.logprob, slope

    return term


def _second_moment(paper: SimpleNamespace, samples: Sequence[Sample]) -> LossTerm:
    every = tokens = all_tokens(samples)
    if paper.among == "pushed_on":
        tokens = [t for t in tokens if t.advantage * (t.proximal - t.behaviour) > 0]
    log_ratios, others_stay = [t.proximal - t.behaviour for t in tokens], len(tokens) < len(every)
    kept = reference.within_second_moment(log_ratios, paper.m2_threshold, may_all_go=others_stay)
    is_kept = dict(zip(map(id, tokens), kept, strict=True))

    def term(_: Sample, token: Token) -> Term:
        value = -is_kept.get(id(token), True) * math.exp(token.logprob - token.behaviour) * token.advantage
        return value, value

    return term


_TERMS: Mapping[str, Callable[[SimpleNamespace, Sequence[Sample]], LossTerm]] = {
    "clip": _clip, "sequence_clip": _sequence_clip, "log_prob": _log_prob, "gate": _gate, "weight": _weight,
    "second_moment": _second_moment,
}  # fmt: skip


# --- aggregation ---------------------------------------------------------------------------------


def weights(samples: Sequence[Sample], aggregation: str, max_length: int | None = None) -> list[list[float]]:
    num_tokens = len(all_tokens(samples))
    of_group: dict[int, int] = {}
    for sample in samples:
        of_group[sample.group] = of_group.get(sample.group, 0) + len(sample.tokens)
    result = []
    for sample in samples:
        n = len(sample.tokens)
        divisor = {
            "token_mean": num_tokens,
            "sequence_mean": n * len(samples),
            "sequence_sum": len(samples),
            "group_mean": of_group[sample.group] * len(of_group),
            "constant": len(samples) * (max_length or 1),
        }[aggregation]
        result.append([1 / divisor] * n)
    return result


def total(samples: Sequence[Sample], aggregation: str, term: LossTerm, max_length: int | None = None) -> Total:
    made = Total(advantages=[token.advantage for token in all_tokens(samples)])
    for sample, row in zip(samples, weights(samples, aggregation, max_length), strict=True):
        for token, weight in zip(sample.tokens, row, strict=True):
            value, slope = term(sample, token)
            made.loss += weight * value
            made.size += weight * abs(value)
            made.slopes.append(weight * slope)
    return made
