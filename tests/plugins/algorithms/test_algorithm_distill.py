"""Distillation: values and gradients against plain Python, what is refused, and the conformance suite."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from algorithm_batches import make_batch, put
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_lit.testing.algorithm import check_algorithm
from areal_lit.token_batch import TokenBatch, TokenOutputs, weighted_sum
from areal_lit_algorithms.distill import Distill
from areal_lit_algorithms.pieces.divergences import LEAST_TAIL, contributions, topk_divergence

KINDS = ("reverse_kl", "forward_kl", "jensen_shannon")


def plain_divergence(kind: str, policy: list[float], teacher: list[float], beta: float) -> float:
    """From probabilities."""

    def kl(x: list[float], y: list[float]) -> float:
        return sum(a * math.log(a / b) for a, b in zip(x, y, strict=True))

    if kind == "reverse_kl":
        return kl(policy, teacher)
    if kind == "forward_kl":
        return kl(teacher, policy)
    mixture = [beta * p + (1 - beta) * q for q, p in zip(policy, teacher, strict=True)]
    return beta * kl(teacher, mixture) + (1 - beta) * kl(policy, mixture)


def plain_slopes(kind: str, policy: list[float], teacher: list[float], beta: float) -> list[float]:
    """Gradient of the divergence in the policy's logits: p (f - E f) for the derivative f in each probability."""
    if kind == "reverse_kl":
        slopes = [math.log(q / p) + 1 for q, p in zip(policy, teacher, strict=True)]
    elif kind == "forward_kl":
        slopes = [-p / q for q, p in zip(policy, teacher, strict=True)]
    else:
        slopes = [(1 - beta) * math.log(q / (beta * p + (1 - beta) * q)) for q, p in zip(policy, teacher, strict=True)]
    mean = sum(q * slope for q, slope in zip(policy, slopes, strict=True))
    return [q * (slope - mean) for q, slope in zip(policy, slopes, strict=True)]


def softmax(logits: list[float]) -> list[float]:
    total = sum(math.exp(x) for x in logits)
    return [math.exp(x) / total for x in logits]


logits = st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=2, max_size=6)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(pairs=logits, beta=st.floats(0.05, 0.95))
def test_divergences_and_their_gradients_are_the_closed_form(
    kind: Any, pairs: list[tuple[float, float]], beta: float
) -> None:
    own, others = zip(*pairs, strict=True)
    policy, teacher = softmax(list(own)), softmax(list(others))
    logit_V = torch.tensor(own, dtype=torch.float64, requires_grad=True)
    value = contributions(
        kind, logit_V.log_softmax(0), torch.tensor(teacher, dtype=torch.float64).log(), beta=beta
    ).sum()
    (slope_V,) = torch.autograd.grad(value, logit_V)
    assert value.item() == pytest.approx(plain_divergence(kind, policy, teacher, beta), abs=1e-9)
    assert slope_V.tolist() == pytest.approx(plain_slopes(kind, policy, teacher, beta), abs=1e-9)
    assert value.item() >= -1e-12


@given(pairs=logits)
def test_jensen_shannon_is_symmetric_bounded_and_between_the_two_kls(pairs: list[tuple[float, float]]) -> None:
    own, others = (torch.tensor(x, dtype=torch.float64).log_softmax(0) for x in zip(*pairs, strict=True))

    def divergence(kind: Any, x: torch.Tensor, y: torch.Tensor, beta: float = 0.5) -> float:
        return contributions(kind, x, y, beta=beta).sum().item()

    assert divergence("jensen_shannon", own, others) == pytest.approx(
        divergence("jensen_shannon", others, own), abs=1e-12
    )
    assert divergence("jensen_shannon", own, others) <= math.log(2) + 1e-12
    tiny = 1e-6
    assert divergence("jensen_shannon", own, others, tiny) / tiny == pytest.approx(
        divergence("forward_kl", own, others), rel=1e-2, abs=1e-4
    )
    assert divergence("jensen_shannon", own, others, 1 - tiny) / tiny == pytest.approx(
        divergence("reverse_kl", own, others), rel=1e-2, abs=1e-4
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(pairs=logits, k=st.integers(1, 5))
def test_the_likeliest_tokens_and_the_rest_are_a_divergence_below_the_whole(
    kind: Any, pairs: list[tuple[float, float]], k: int
) -> None:
    own, others = zip(*pairs, strict=True)
    policy, teacher = softmax(list(own)), softmax(list(others))
    chosen = sorted(range(len(teacher)), key=lambda v: -teacher[v])[:k]
    logit_V = torch.tensor(own, dtype=torch.float64, requires_grad=True)
    value = topk_divergence(
        kind, logit_V.log_softmax(0)[None, chosen], torch.tensor(teacher, dtype=torch.float64).log()[None, chosen]
    )
    merged = [[x[v] for v in chosen] + [max(1 - sum(x[v] for v in chosen), LEAST_TAIL)] for x in (policy, teacher)]
    assert value.item() == pytest.approx(plain_divergence(kind, *merged, 0.5), abs=1e-7)
    assert -1e-9 <= value.item() <= plain_divergence(kind, policy, teacher, 0.5) + 1e-7
    (slope_V,) = torch.autograd.grad(value.sum(), logit_V)
    if k >= len(teacher):
        assert slope_V.tolist() == pytest.approx(plain_slopes(kind, policy, teacher, 0.5), abs=1e-7)


# --- the loss on a vocabulary of four tokens, in closed form -------------------------------------------------------

TEACHER, POLICY, BEHAVIOUR = (softmax(x) for x in ([0.3, -1.0, 0.8, 0.0], [0.1, 0.5, -0.7, 0.2], [0.4, 0.4, -0.1, 0.0]))


def every_token(algorithm: Distill) -> TokenBatch:
    """A sample per token of the vocabulary, drawn by the behaviour policy; the teacher knows all."""
    batch = make_batch(algorithm, [0] * 4, [1.0, 0.0, 0.0, 1.0], [[1]] * 4)
    columns = {"logprob": BEHAVIOUR, "teacher": TEACHER}
    if "proximal" in algorithm.needs:
        columns["proximal"] = POLICY
    for name, rows in columns.items():
        batch = put(batch, name, [[math.log(p)] for p in rows])
    return algorithm.prepare(batch)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("decoupled", [False, True])
def test_the_sampled_token_has_the_gradient_of_the_reverse_kl_from_stale_samples_too(
    decoupled: bool, centred: bool
) -> None:
    """In expectation over what the behaviour policy draws."""
    old: Any = "proximal" if decoupled else "behaviour"
    algorithm = Distill(distill_weight=0.5, decoupled=decoupled, old=old, centred=centred)
    logit_V = torch.tensor(POLICY, dtype=torch.float64).log().requires_grad_()
    logprob_T = torch.zeros(8, dtype=torch.float64).index_put((torch.arange(1, 8, 2),), logit_V.log_softmax(0))
    loss = algorithm.policy_objective(TokenOutputs(logprob_T=logprob_T), every_token(algorithm))
    expected = (torch.tensor(BEHAVIOUR, dtype=torch.float64) * loss.values[1::2]).sum()
    (slope_V,) = torch.autograd.grad(expected, logit_V)
    drawn = POLICY if decoupled else BEHAVIOUR
    mean = sum(math.log(p / q) for q, p in zip(drawn, TEACHER, strict=True)) / 4 if centred else 0.0
    value = plain_divergence("reverse_kl", POLICY, TEACHER, 0.5) + mean
    assert expected.item() == pytest.approx(0.5 * value, abs=1e-6)
    assert slope_V.tolist() == pytest.approx(
        [0.5 * x for x in plain_slopes("reverse_kl", POLICY, TEACHER, 0.5)], abs=1e-6
    )


def outputs_of(algorithm: Distill, logit_V: torch.Tensor, num_tokens: int) -> TokenOutputs:
    """What a strategy says where every prefix has these logits, garbage at prompts."""
    logp_TV = logit_V.log_softmax(0).expand(num_tokens, -1)
    teacher_TV = torch.tensor(TEACHER, dtype=torch.float64).log().expand(num_tokens, -1)
    is_prompt_T = torch.arange(num_tokens) % 2 == 0
    divergence_T = algorithm.pointwise_divergence(logp_TV, teacher_TV).sum(-1)
    return TokenOutputs(
        logprob_T=logp_TV[:, 0],
        topk_logprob_TK=logp_TV[:, [2, 0]].masked_fill(is_prompt_T[:, None], math.nan),
        divergence_T=divergence_T.masked_fill(is_prompt_T, math.nan),
    )


@pytest.mark.parametrize("compare", ["top_k", "vocabulary"])
@pytest.mark.parametrize("kind", KINDS)
def test_other_tokens_have_the_divergences_own_gradient_whatever_was_drawn(compare: Any, kind: Any) -> None:
    algorithm = Distill(compare=compare, divergence=kind, beta=0.3, top_k=2, distill_weight=2.0)
    batch = every_token(algorithm)
    topk_TK = torch.tensor(TEACHER).log()[[2, 0]].expand(8, -1)
    batch = batch.with_columns(topk_token=torch.tensor([[2, 0]] * 8), topk_logprob=topk_TK)
    logit_V = torch.tensor(POLICY, dtype=torch.float64).log().requires_grad_()
    weighed = algorithm.weigh(batch)
    loss = algorithm.policy_objective(outputs_of(algorithm, logit_V, 8), weighed)
    total = weighted_sum(loss, weighed)
    (slope_V,) = torch.autograd.grad(total, logit_V)
    policy, teacher = POLICY, TEACHER
    if compare == "top_k":
        policy, teacher = ([x[2], x[0], x[1] + x[3]] for x in (POLICY, TEACHER))
    expected = plain_divergence(kind, policy, teacher, 0.3)
    assert total.item() == pytest.approx(2 * expected, abs=1e-5)
    assert {m.name: m.value for m in loss.metrics}["teacher_divergence"] == pytest.approx(expected, abs=1e-5)
    slopes = plain_slopes(kind, policy, teacher, 0.3)
    if compare == "top_k":
        share = [POLICY[v] / (POLICY[1] + POLICY[3]) for v in (1, 3)]
        slopes = [slopes[1], slopes[2] * share[0], slopes[0], slopes[2] * share[1]]
    assert slope_V.tolist() == pytest.approx([2 * x for x in slopes], abs=1e-5)


@pytest.mark.parametrize("compare", ["sampled", "top_k", "vocabulary"])
def test_a_mixed_loss_is_the_sum_of_its_parts(compare: Any) -> None:
    def values(**weights: float) -> torch.Tensor:
        algorithm = Distill(compare=compare, top_k=2, **weights)
        batch = every_token(algorithm).with_columns(
            topk_token=torch.tensor([[2, 0]] * 8), topk_logprob=torch.tensor(TEACHER).log()[[2, 0]].expand(8, -1)
        )
        logit_V = torch.tensor(POLICY, dtype=torch.float64).log()
        return algorithm.policy_objective(outputs_of(algorithm, logit_V, 8), batch).values[1::2]

    pure, mixed, more = values(), values(rl_weight=1.0), values(rl_weight=3.0, distill_weight=0.2)
    torch.testing.assert_close(more, 3 * (mixed - pure) + 0.2 * pure)
    assert bool((mixed != pure).any()), "rewards must count as soon as rl_weight is above 0"


# --- the suite, and what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize("rl_weight", [0.0, 1.0])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"decoupled": True, "old": "proximal"},
        {"compare": "top_k", "top_k": 3, "divergence": "jensen_shannon"},
        {"compare": "vocabulary", "divergence": "forward_kl"},
    ],
)
def test_it_conforms(options: dict[str, Any], rl_weight: float) -> None:
    algorithm = Distill(rl_weight=rl_weight, **options)
    check_algorithm(algorithm, rounds=1, raises_good=rl_weight > 0)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"rl_weight": -1.0}, r"rl_weight must be finite and >= 0 \(0 is pure distillation\), got -1"),
        ({"distill_weight": 0.0}, "distill_weight must be finite and > 0, got 0.0; without a teacher use grpo"),
        ({"beta": 1.0}, r"beta must be in \(0, 1\), got 1.0"),
        ({"top_k": 0}, "top_k must be >= 1, got 0"),
        ({"divergence": "forward_kl"}, "set compare to top_k"),
    ],
)
def test_options_that_cannot_work_are_refused_with_a_way_out(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        Distill(**options)


def test_it_needs_what_it_compares() -> None:
    needs = {compare: Distill(compare=compare).needs for compare in ("sampled", "top_k", "vocabulary")}
    assert needs == {"sampled": {"teacher"}, "top_k": {"topk"}, "vocabulary": {"divergence"}}
    assert Distill(decoupled=True, old="proximal").needs == {"teacher", "proximal"}
