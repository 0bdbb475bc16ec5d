"""Divergences over a vocabulary in blocks, and likeliest tokens, against plain torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from areal_lit_single.divergence import Predictions, vocabulary_divergence
from areal_lit_single.logprobs import likeliest_tokens, token_logprobs

ROWS, VOCABULARY = 5, 11


def predictions(seed: int, *, hidden: int = 4, bias: bool = True) -> Predictions:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    scale_R = torch.rand(ROWS, generator=generator, dtype=torch.float64) + 0.5
    return Predictions(
        hidden_RD=draw(ROWS, hidden), weight_VD=draw(VOCABULARY, hidden), bias_V=draw(VOCABULARY) if bias else None,
        scale_R=scale_R,
    )  # fmt: skip


def distributions(said: Predictions) -> Tensor:
    logits = torch.nn.functional.linear(said.hidden_RD, said.weight_VD, said.bias_V)
    return (logits * said.scale_R[:, None]).log_softmax(-1)


def reverse_kl(own: Tensor, teacher: Tensor) -> Tensor:
    return own.exp() * (own - teacher)


def skewed(own: Tensor, teacher: Tensor) -> Tensor:
    return (own - teacher).tanh() * teacher.exp() + own.square() * own.exp()


@settings(max_examples=30)
@given(
    block_elements=st.integers(1, 80), bias=st.booleans(), pointwise=st.sampled_from([reverse_kl, skewed]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_blocks_change_neither_value_nor_gradients(block_elements: int, bias: bool, pointwise, seed: int) -> None:
    policy, teacher = predictions(seed, bias=bias), predictions(seed + 1, hidden=3)
    ours = vocabulary_divergence(policy, teacher, pointwise, block_elements=block_elements)
    theirs = pointwise(distributions(policy), distributions(teacher)).sum(-1)
    torch.testing.assert_close(ours, theirs)
    inputs = [x for x in (policy.hidden_RD, policy.weight_VD, policy.bias_V) if x is not None]
    gradients = [torch.autograd.grad(value.sin().sum(), inputs) for value in (ours, theirs)]
    torch.testing.assert_close(*gradients)


def test_the_teacher_gets_no_gradient() -> None:
    policy, teacher = predictions(0), predictions(1)
    vocabulary_divergence(policy, teacher, reverse_kl).sum().backward()
    assert policy.weight_VD.grad is not None
    assert teacher.weight_VD.grad is None
    assert teacher.hidden_RD.grad is None


def test_tokens_impossible_to_both_add_nothing() -> None:
    policy, teacher = (predictions(seed) for seed in (0, 1))
    with torch.no_grad():
        for said in (policy, teacher):
            assert said.bias_V is not None
            said.bias_V[3] = float("-inf")
    kept = [v for v in range(VOCABULARY) if v != 3]
    ours = vocabulary_divergence(policy, teacher, reverse_kl, block_elements=20)
    torch.testing.assert_close(
        ours, reverse_kl(distributions(policy)[:, kept], distributions(teacher)[:, kept]).sum(-1)
    )
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(ours.sum(), (policy.hidden_RD, policy.weight_VD)))


@pytest.mark.parametrize("block_elements", [1, 20, 10**6])
@pytest.mark.parametrize("k", [1, 4, VOCABULARY])
def test_likeliest_tokens_are_those_of_the_whole_vocabulary(block_elements: int, k: int) -> None:
    said = predictions(3)
    token_RK, logprob_RK = likeliest_tokens(
        said.hidden_RD, said.weight_VD, said.bias_V, said.scale_R, k, block_elements=block_elements
    )
    expected, tokens = distributions(said).topk(k)
    torch.testing.assert_close(logprob_RK, expected.detach())
    assert torch.equal(token_RK, tokens)


@pytest.mark.parametrize("block_elements", [1, 20, 10**6])
def test_logprobs_of_several_tokens_of_a_row_and_their_gradients(block_elements: int) -> None:
    said, target_RK = predictions(4), torch.tensor([[0, 7, 7], [1, 2, 10], [5, 4, 3], [9, 9, 9], [0, 0, 1]])
    inputs = (said.hidden_RD, said.weight_VD, said.bias_V)
    ours, _ = token_logprobs(*inputs, target_RK, said.scale_R, block_elements=block_elements)
    theirs = distributions(said).gather(1, target_RK)
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(value.sin().sum(), inputs) for value in (ours, theirs)]
    torch.testing.assert_close(*gradients)
