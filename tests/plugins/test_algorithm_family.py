"""Every policy-gradient algorithm against plain Python on random ragged batches, and by the conformance suite."""

from __future__ import annotations

import ast
import inspect
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import algorithm_reference as reference
import pytest
import torch
from algorithm_reference import Sample, Term, Token
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_lit.testing.algorithm import check_algorithm
from areal_lit.testing.algorithm_case import AlgorithmCase
from areal_lit.testing.toy import RaggedGroups
from areal_lit.token_batch import TokenBatch, TokenOutputs, weighted_sum
from areal_lit_algorithms.cispo import CISPO
from areal_lit_algorithms.dapo import DAPO
from areal_lit_algorithms.dr_grpo import DrGRPO
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.gspo import GSPO
from areal_lit_algorithms.icepop import IcePop
from areal_lit_algorithms.kpop import KPop
from areal_lit_algorithms.lite_ppo import LitePPO
from areal_lit_algorithms.m2po import M2PO
from areal_lit_algorithms.pieces.shaping import Overlong, Shaping
from areal_lit_algorithms.policy_gradient import PolicyGradient
from areal_lit_algorithms.ppo import PPO
from areal_lit_algorithms.reinforce_pp import ReinforcePP
from areal_lit_algorithms.reinforce_pp_baseline import ReinforcePPBaseline
from areal_lit_algorithms.rloo import RLOO
from areal_lit_algorithms.sapo import SAPO

Expected = tuple[float, list[float]]

OVERLONG = Shaping(overlong=Overlong(max_length=12, buffer=6))


def clipped(samples: Sequence[Sample], aggregation: str = "token_mean", high: float = 0.2, length: int = 1) -> Expected:
    """The decoupled clipped loss of given advantages."""

    def term(sample: Sample, token: Token) -> Term:
        weight = reference.off_policy(token)
        value, slope = reference.clip(token.logprob - token.proximal, token.advantage, 0.2, high)
        return weight * value, weight * slope

    return reference.total(samples, aggregation, term, length)


def grpo(samples: list[Sample]) -> Expected:
    reference.give_rewards(samples)
    return clipped(samples)


def dr_grpo(samples: list[Sample]) -> Expected:
    reference.give_rewards(samples, std="none")
    return clipped(samples, "constant", length=12)


def dapo(samples: list[Sample]) -> Expected:
    for sample in samples:
        sample.reward += min(0.0, max(-1.0, -(len(sample.tokens) - 6) / 6))
    reference.give_rewards(samples)
    return clipped(samples, high=0.28)


def lite_ppo(samples: list[Sample]) -> Expected:
    reference.give_rewards(samples, std="batch")
    return clipped(samples)


def rloo(samples: list[Sample]) -> Expected:
    reference.give_rewards(samples, std="none", others=True)

    def term(sample: Sample, token: Token) -> Term:
        weighted = -token.advantage * reference.off_policy(token)
        return weighted * token.logprob, weighted

    return reference.total(samples, "sequence_sum", term)


def rloo_clipped(samples: list[Sample]) -> Expected:
    reference.give_rewards(samples, std="none", others=True)
    return clipped(samples, "sequence_sum")


def reinforce_pp(samples: list[Sample]) -> Expected:
    reference.give_rewards(samples, mean="none", std="none")
    reference.take_divergence(samples, 0.01)
    reference.whiten(samples)
    return clipped(samples)


def reinforce_pp_baseline(samples: list[Sample]) -> Expected:
    reference.give_rewards(samples, std="none")
    reference.whiten(samples)

    def term(sample: Sample, token: Token) -> Term:
        weight = reference.off_policy(token)
        value, slope = reference.clip(token.logprob - token.proximal, token.advantage, 0.2, 0.2)
        x, ratio = token.logprob - token.reference, min(math.exp(token.logprob - token.behaviour), 10.0)
        return weight * value + 0.01 * x * x / 2 * ratio, weight * slope + 0.01 * x * ratio

    return reference.total(samples, "token_mean", term)


def gspo(samples: list[Sample]) -> Expected:
    reference.give_rewards(samples)

    def term(sample: Sample, token: Token) -> Term:
        mean = statistics.fmean(t.logprob - t.proximal for t in sample.tokens)
        value, slope = reference.clip(mean, token.advantage, 3e-4, 4e-4)
        weight = reference.off_policy(token)
        return weight * value, weight * slope

    return reference.total(samples, "sequence_mean", term)


def sapo(samples: list[Sample]) -> Expected:
    reference.give_rewards(samples)
    return reference.total(
        samples, "sequence_mean", lambda _, t: reference.gate(t.logprob - t.proximal, t.advantage, 1.0, 1.05)
    )


def cispo(samples: list[Sample]) -> Expected:
    reference.give_rewards(samples)

    def term(sample: Sample, token: Token) -> Term:
        weight = reference.off_policy(token) * min(math.exp(token.logprob - token.proximal), 5.0)
        return -weight * token.advantage * token.logprob, -weight * token.advantage

    return reference.total(samples, "token_mean", term)


def m2po(samples: list[Sample]) -> Expected:
    reference.give_rewards(samples)
    tokens = reference.all_tokens(samples)
    kept = reference.within_second_moment([t.proximal - t.behaviour for t in tokens], 0.04)
    is_kept = {id(token): keep for token, keep in zip(tokens, kept, strict=True)}

    def term(sample: Sample, token: Token) -> Term:
        value = -is_kept[id(token)] * math.exp(token.logprob - token.behaviour) * token.advantage
        return value, value

    return reference.total(samples, "token_mean", term)


def rejecting(weight_of: Callable[[Token], float]) -> Callable[[list[Sample]], Expected]:
    def expected(samples: list[Sample]) -> Expected:
        reference.give_rewards(samples)

        def term(sample: Sample, token: Token) -> Term:
            value, slope = reference.clip(token.logprob - token.proximal, token.advantage, 0.2, 0.2)
            return weight_of(token) * value, weight_of(token) * slope

        return reference.total(samples, "token_mean", term)

    return expected


def within_binary_kl(token: Token) -> float:
    is_kept = reference.bernoulli_divergence(token.proximal, token.behaviour) <= 2.0
    return math.exp(token.proximal - token.behaviour) if is_kept else 0.0


def ppo(samples: list[Sample]) -> Expected:
    for sample in samples:
        rewards = [t.turn_reward or 0.0 for t in sample.tokens]
        rewards[-1] += sample.reward
        advantages = reference.estimate_advantages(sample, rewards, gamma=1.0, lam=0.95, by_turn=False)
        for token, advantage in zip(sample.tokens, advantages, strict=True):
            token.advantage = advantage
    reference.whiten(samples)
    return clipped(samples)


FAMILY: dict[str, tuple[PolicyGradient, Callable[[list[Sample]], Expected]]] = {
    "grpo": (GRPO(), grpo),
    "dr_grpo": (DrGRPO(max_length=12), dr_grpo),
    "dapo": (DAPO(reward_shaping=OVERLONG), dapo),
    "lite_ppo": (LitePPO(), lite_ppo),
    "rloo": (RLOO(), rloo),
    "rloo_clipped": (RLOO(clipped=True), rloo_clipped),
    "reinforce_pp": (ReinforcePP(), reinforce_pp),
    "reinforce_pp_baseline": (ReinforcePPBaseline(), reinforce_pp_baseline),
    "gspo": (GSPO(), gspo),
    "sapo": (SAPO(), sapo),
    "cispo": (CISPO(), cispo),
    "m2po": (M2PO(), m2po),
    "icepop": (IcePop(), rejecting(lambda t: reference.off_policy(t, lower=0.5, is_masked=True))),
    "kpop": (KPop(), rejecting(within_binary_kl)),
    "ppo": (PPO(), ppo),
}

AT_WORK = {
    "grpo": ("clip_low", "clip_high"),
    "dr_grpo": ("clip_low", "clip_high"),
    "dapo": ("clip_low", "clip_high"),
    "lite_ppo": ("clip_low", "clip_high"),
    "rloo": ("rejected_high",),
    "rloo_clipped": ("clip_low", "clip_high"),
    "reinforce_pp": ("clip_low", "clip_high", "kl_reference"),
    "reinforce_pp_baseline": ("clip_low", "clip_high", "kl_reference"),
    "gspo": ("clip_low", "clip_high"),
    "cispo": ("clip_high",),
    "m2po": ("m2_dropped",),
    "icepop": ("rejected_low", "rejected_high"),
    "kpop": ("rejected_high",),
    "ppo": ("clip_low", "clip_high"),
}
"""Metrics that are above 0 once the clip, gate or mask does something."""


def spread_batch(algorithm: PolicyGradient, seed: int) -> tuple[TokenBatch, torch.Tensor]:
    """A ragged step whose policies differ by up to an e-fold and more, and current log-probs, float64 [T]."""
    batch = AlgorithmCase(algorithm=algorithm, draw=RaggedGroups(), seed=seed)
    packed = batch.packed(batch.groups())
    noise = torch.Generator().manual_seed(seed)

    def drawn(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(packed.num_tokens, generator=noise, dtype=torch.float64)

    behaviour_T = drawn(-9.0, -0.02)
    proximal_T = (behaviour_T + drawn(-2.0, 2.2)).clamp(max=-0.01)
    proximal_T[drawn(0, 1) < 0.05] = -0.001
    logprob_T = (proximal_T + drawn(-0.6, 0.6)).clamp(max=-0.0005)
    columns = {**packed.columns, "logprob": behaviour_T}
    columns |= {"proximal": proximal_T} if "proximal" in packed else {}
    columns |= {"reference": logprob_T + drawn(-0.5, 0.5)} if "reference" in packed else {}
    return replace(packed, columns=columns), logprob_T


def step(
    algorithm: PolicyGradient, batch: TokenBatch, current_T: torch.Tensor
) -> tuple[float, list[float], dict[str, float]]:
    """Loss, its slope in each loss token's log-prob, and metrics."""
    weighed = algorithm.weigh(algorithm.prepare(batch))
    logprob_T = current_T.clone().requires_grad_()
    loss = algorithm.objectives()["policy"](TokenOutputs(logprob_T=logprob_T), weighed)
    total = weighted_sum(loss, weighed)
    (slope_T,) = torch.autograd.grad(total, logprob_T)
    assert not slope_T[~batch["loss_mask"]].any()
    return total.item(), slope_T[batch["loss_mask"]].tolist(), {m.name: m.value for m in loss.metrics}


@pytest.mark.parametrize("name", FAMILY)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_loss_and_gradient_are_the_papers(name: str, seed: int) -> None:
    algorithm, expected = FAMILY[name]
    batch, current_T = spread_batch(algorithm, seed)
    loss, slopes, _ = step(algorithm, batch, current_T)
    wanted, wanted_slopes = expected(reference.samples_of(batch, current_T))
    scale = max(map(abs, wanted_slopes))
    assert loss == pytest.approx(wanted, rel=1e-5, abs=1e-5 * max(1.0, scale))
    assert slopes == pytest.approx(wanted_slopes, rel=1e-5, abs=1e-5 * scale)


@pytest.mark.parametrize("name", AT_WORK)
def test_each_clip_gate_and_mask_is_at_work(name: str) -> None:
    algorithm, _ = FAMILY[name]
    batch, current_T = spread_batch(algorithm, 3)
    both_ways_T = 2.5 * torch.arange(batch.num_tokens).cos()
    _, slopes, metrics = step(algorithm, batch, current_T + both_ways_T)
    assert all(metrics[wanted] > 0 for wanted in AT_WORK[name]), metrics
    has_other_terms = algorithm.kl_weight > 0 and algorithm.kl_in == "loss"
    if {"clip_low", "m2_dropped", "rejected_low"} & set(AT_WORK[name]) and not has_other_terms:
        advantage = algorithm.prepare(batch)["advantage"][batch["loss_mask"]]
        assert any(slope == 0 for slope, a in zip(slopes, advantage.tolist(), strict=True) if a)


def test_the_soft_gate_closes_and_never_shuts() -> None:
    batch, _ = spread_batch(SAPO(), 3)
    at_old, away = (step(SAPO(), batch, batch["proximal"] + shift)[2]["gate_slope"] for shift in (0.0, 1.5))
    assert at_old == pytest.approx(1.0)
    assert 0 < away < 0.2


@pytest.mark.parametrize("name", FAMILY)
def test_conformance(name: str) -> None:
    check_algorithm(FAMILY[name][0], rounds=2)


SHORT = sorted({type(a) for a, _ in FAMILY.values()} - {PPO}, key=lambda a: a.__name__)


@pytest.mark.parametrize("algorithm", SHORT, ids=lambda a: a.__name__)
def test_each_is_a_short_class_with_its_formula_and_its_defaults_told(algorithm: type) -> None:
    source = Path(inspect.getfile(algorithm)).read_text()
    tree = ast.parse(source)
    told = {n for node in ast.walk(tree) if (doc := _docstring(node)) for n in range(doc.lineno, doc.end_lineno + 1)}
    lines = [n for n, line in enumerate(source.splitlines(), 1) if line.strip() and n not in told]
    assert len(lines) <= 50
    text = ast.get_docstring(tree) or ""
    assert "| published | ours | why |" in text
    assert "    " in text  # a formula, set off


def _docstring(node: ast.AST) -> Any:
    body = getattr(node, "body", None)
    first = body[0] if isinstance(body, list) and body else None
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return first if is_text else None
