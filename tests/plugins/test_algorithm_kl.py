"""KL terms against what they estimate, in closed form on a small categorical."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from areal_lit_algorithms.pieces.kl import kl_loss
from areal_lit_algorithms.pieces.ratios import log_ratio, ratio

LOGITS = torch.tensor([0.3, -1.0, 0.8, 0.0], dtype=torch.float64)
REFERENCE = torch.log_softmax(torch.tensor([0.0, 0.5, -0.4, 0.2], dtype=torch.float64), 0)
BEHAVIOUR = torch.log_softmax(torch.tensor([0.1, -0.3, 0.2, 0.4], dtype=torch.float64), 0)
EVERY_TOKEN = torch.ones(4, dtype=torch.bool)


def expected_term(estimator: Any, behaviour: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Expectation over ``behaviour`` of the term, and of its gradient in the logits."""
    logits = LOGITS.clone().requires_grad_()
    logprob = torch.log_softmax(logits, 0)
    term = (behaviour.exp() * kl_loss(logprob, REFERENCE, behaviour, EVERY_TOKEN, estimator)).sum()
    return term.item(), torch.autograd.grad(term, logits)[0]


def divergence(*, is_reverse: bool) -> tuple[float, torch.Tensor]:
    logits = LOGITS.clone().requires_grad_()
    logprob = torch.log_softmax(logits, 0)
    first, second = (logprob, REFERENCE) if is_reverse else (REFERENCE, logprob)
    value = (first.exp() * (first - second)).sum()
    return value.item(), torch.autograd.grad(value, logits)[0]


@pytest.mark.parametrize("behaviour", [torch.log_softmax(LOGITS, 0), BEHAVIOUR], ids=["on-policy", "off-policy"])
@pytest.mark.parametrize(("estimator", "is_reverse"), [("k2", True), ("k3+", True), ("k3", False)])
def test_gradients_are_those_of_the_divergence(estimator: Any, is_reverse: bool, behaviour: torch.Tensor) -> None:
    _, gradient = expected_term(estimator, behaviour)
    assert torch.allclose(gradient, divergence(is_reverse=is_reverse)[1])


@pytest.mark.parametrize("estimator", ["k3", "k3+"])
def test_k3_has_the_reverse_divergence_as_its_value(estimator: Any) -> None:
    value, _ = expected_term(estimator, BEHAVIOUR)
    assert value == pytest.approx(divergence(is_reverse=True)[0])


def test_masked_values_reach_no_exponential() -> None:
    mask = torch.tensor([True, False])
    logprob = torch.tensor([-1.0, float("nan")], requires_grad=True)
    result = ratio(log_ratio(logprob, torch.tensor([-1.0, -1e30]), mask))
    assert result.tolist() == [1.0, 1.0]
    assert torch.autograd.grad(result.sum(), logprob)[0].tolist() == [1.0, 0.0]
