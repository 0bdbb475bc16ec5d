"""Chunked log-probs and entropies against plain torch, values and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_lit_single.logprobs import token_logprobs

ROWS, HIDDEN, VOCABULARY = 7, 5, 11


def inputs(dtype: torch.dtype = torch.float64, *, bias: bool = True, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    hidden, weight = draw(ROWS, HIDDEN).requires_grad_(), draw(VOCABULARY, HIDDEN).requires_grad_()
    bias_V = draw(VOCABULARY).requires_grad_() if bias else None
    target = torch.randint(VOCABULARY, (ROWS,), generator=generator)
    scale = torch.rand(ROWS, generator=generator, dtype=torch.float64) + 0.5
    return hidden, weight, bias_V, target, scale


def plain(hidden, weight, bias, target, scale):
    logits = torch.nn.functional.linear(hidden, weight, bias) * scale[:, None]
    logp = logits.log_softmax(-1)
    return logp.gather(1, target[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("block_elements", [1, 25, 10**6])
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_pass_gradcheck_in_float64(block_elements: int, bias: bool) -> None:
    hidden, weight, bias_V, target, scale = inputs(bias=bias)

    def both(h, w, b):
        return token_logprobs(h, w, b, target, scale, entropy=True, block_elements=block_elements)

    def one(h, w, b):
        return token_logprobs(h, w, b, target, scale, block_elements=block_elements)[0]

    assert torch.autograd.gradcheck(both, (hidden, weight, bias_V))
    assert torch.autograd.gradcheck(one, (hidden, weight, bias_V))


@settings(max_examples=40)
@given(block_elements=st.integers(1, 200), use=st.sampled_from(["logprob", "entropy", "both"]), seed=st.integers(0, 99))
def test_blocks_change_neither_values_nor_gradients(block_elements: int, use: str, seed: int) -> None:
    hidden, weight, bias_V, target, scale = inputs(seed=seed)
    results = []
    for function in (
        lambda *a: token_logprobs(*a, entropy=True, block_elements=block_elements),
        plain,
    ):
        logprob, entropy = function(hidden, weight, bias_V, target, scale)
        loss = {"logprob": logprob.sin().sum(), "entropy": entropy.sin().sum()}.get(use, (logprob * entropy).sum())
        results.append((logprob, entropy, *torch.autograd.grad(loss, (hidden, weight, bias_V))))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_frozen_head_gets_no_gradient_and_no_buffer() -> None:
    hidden, weight, _, target, scale = inputs()
    weight.requires_grad_(False)
    logprob, entropy = token_logprobs(hidden, weight, None, target, scale, block_elements=25)
    logprob.sum().backward()
    assert entropy is None
    assert weight.grad is None
    expected = torch.autograd.grad(plain(hidden, weight, None, target, scale)[0].sum(), hidden)[0]
    torch.testing.assert_close(hidden.grad, expected)


def test_bfloat16_is_normalised_in_float32() -> None:
    hidden, weight, _, target, scale = inputs(torch.bfloat16)
    logprob, _ = token_logprobs(hidden, weight, None, target, scale)
    logits = torch.nn.functional.linear(hidden, weight).float() * scale.float()[:, None]
    assert logprob.dtype == torch.float32
    torch.testing.assert_close(logprob, logits.log_softmax(-1).gather(1, target[:, None])[:, 0])
    logprob.sum().backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16


def test_no_rows_at_all() -> None:
    hidden, weight, _, target, scale = inputs()
    logprob, _ = token_logprobs(hidden[:0], weight, None, target[:0], scale[:0], entropy=True)
    logprob.sum().backward()
    assert logprob.shape == (0,)
    assert float(weight.grad.abs().sum()) == 0


@pytest.mark.parametrize("block_elements", [25, 10**6])
def test_impossible_tokens_have_no_part_in_entropy_or_gradients(block_elements: int) -> None:
    hidden, weight, bias_V, target, scale = inputs()
    bias_V = bias_V.detach().index_fill(0, torch.tensor([3]), float("-inf"))
    target = torch.where(target == 3, 4, target)
    logprob, entropy = token_logprobs(
        hidden, weight, bias_V, target, scale, entropy=True, block_elements=block_elements
    )
    kept = [v for v in range(VOCABULARY) if v != 3]
    expected = plain(hidden, weight[kept], bias_V[kept], target - (target > 3).long(), scale)
    torch.testing.assert_close((logprob, entropy), expected)
    ours, theirs = (torch.autograd.grad((a + b).sum(), hidden)[0] for a, b in ((logprob, entropy), expected))
    torch.testing.assert_close(ours, theirs)
