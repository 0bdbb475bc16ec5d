"""Every policy-gradient algorithm against plain Python on random ragged batches, and by the conformance suite."""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from algorithm_family import FAMILY
from algorithm_papers import policy_step
from algorithm_reference import samples_of
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_lit.plugins import Plugins
from areal_lit.testing.algorithm import check_algorithm
from areal_lit.testing.algorithm_case import AlgorithmCase
from areal_lit.testing.toy import NEWEST_VERSION, RaggedGroups
from areal_lit.token_batch import TokenBatch, TokenOutputs, weighted_sum
from areal_lit_algorithms.policy_gradient import PolicyGradient
from areal_lit_algorithms.sapo import SAPO

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
    "process_reward": ("clip_low", "clip_high"),
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
@settings(max_examples=15)
def test_loss_and_gradient_are_the_papers(name: str, seed: int) -> None:
    algorithm = FAMILY[name]()
    batch, current_T = spread_batch(algorithm, seed)
    loss, slopes, _ = step(algorithm, batch, current_T)
    wanted = policy_step(name, samples_of(batch, current_T), step=NEWEST_VERSION)
    scale = max(map(abs, wanted.slopes))
    assert loss == pytest.approx(wanted.loss, rel=1e-5, abs=1e-5 * max(1.0, scale))
    assert slopes == pytest.approx(wanted.slopes, rel=1e-5, abs=1e-5 * scale)


@pytest.mark.parametrize("name", AT_WORK)
def test_each_clip_gate_and_mask_is_at_work(name: str) -> None:
    algorithm = FAMILY[name]()
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
    check_algorithm(FAMILY[name](), rounds=2)


INSTALLED = {
    plugin.name: Plugins([plugin]).load("algorithm", plugin.name)
    for plugin in Plugins.discover()
    if (plugin.kind, plugin.distribution) == ("algorithm", "areal-lit")
}
LONG = {"ppo", "distill", "sft"}
"""They have a critic, a teacher, or chats to encode."""


@pytest.mark.parametrize("name", sorted(INSTALLED.keys() - LONG))
def test_each_is_a_short_class(name: str) -> None:
    source = Path(inspect.getfile(INSTALLED[name])).read_text()
    docstrings = [docstring for node in ast.walk(ast.parse(source)) if (docstring := _docstring(node))]
    told = {n for docstring in docstrings for n in range(docstring.lineno, docstring.end_lineno + 1)}
    assert len([n for n, line in enumerate(source.splitlines(), 1) if line.strip() and n not in told]) <= 50


@pytest.mark.parametrize("name", [name for name, cls in INSTALLED.items() if issubclass(cls, PolicyGradient)])
def test_each_tells_its_formula_and_where_its_defaults_come_from(name: str) -> None:
    text = inspect.getdoc(sys.modules[INSTALLED[name].__module__]) or ""
    assert "| published | ours | why |" in text
    assert "\n    " in text  # a formula, set off


def _docstring(node: ast.AST) -> Any:
    body = getattr(node, "body", None)
    first = body[0] if isinstance(body, list) and body else None
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return first if is_text else None
