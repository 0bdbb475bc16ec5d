"""Layouts and packed attention against each sequence alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_lit.models import load_causal_lm
from areal_lit.testing.strategy_case import random_batch
from areal_lit.testing.tiny import tiny_spec
from areal_lit.token_batch import CORE_COLUMNS, TokenBatch
from areal_lit_single.layout import Layout, bucketed, padded
from areal_lit_single.network import Network
from areal_lit_single.prefixes import shared_prefixes

LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=25).filter(any)


@settings(max_examples=80)
@given(lengths=LENGTHS, call_cost_tokens=st.integers(0, 40), is_padded=st.booleans())
def test_every_token_has_one_place_and_its_own_position(
    lengths: list[int], call_cost_tokens: int, is_padded: bool
) -> None:
    length_S = torch.tensor(lengths)
    layout = padded(length_S) if is_padded else bucketed(length_S, call_cost_tokens=call_cost_tokens)
    num_tokens = sum(lengths)
    token_T = torch.arange(100, 100 + num_tokens)
    position_T = torch.cat([torch.arange(n) for n in lengths])
    assert layout.source_P.shape[0] == sum(b.num_rows * b.length for b in layout.buckets)
    assert torch.equal(layout.tokens(token_T)[layout.place_T], token_T)
    assert torch.equal(layout.position_P[layout.place_T], position_T)
    assert layout.cumulative[-1] == layout.source_P.shape[0]
    following_T = position_T[1:] > 0
    assert torch.equal(layout.place_T[1:][following_T], layout.place_T[:-1][following_T] + 1)


def sizes(layout: Layout) -> list[tuple[int, int, int]]:
    return [(bucket.num_rows, bucket.length, bucket.prefix) for bucket in layout.buckets]


def test_equal_lengths_share_one_call_and_padding_stays_small() -> None:
    assert sizes(bucketed(torch.tensor([10] * 128))) == [(128, 10, 0)]
    assert sizes(bucketed(torch.tensor([4, 10, 10, 3, 10]), call_cost_tokens=4)) == [(3, 10, 0), (2, 4, 0)]
    assert sizes(bucketed(torch.tensor([5, 4, 3]), call_cost_tokens=0)) == [(1, 5, 0), (1, 4, 0), (1, 3, 0)]


def prompted(groups: list[tuple[int, list[int]]]) -> TokenBatch:
    """Segments of groups, each with a prompt of its group's own (given length) and completions (given lengths)."""
    draw = torch.Generator().manual_seed(0)
    columns: dict[str, list[torch.Tensor]] = {"token": [], "position": [], "segment": [], "loss_mask": []}
    lengths, group = [], []
    for index, (prompt_length, completions) in enumerate(groups):
        prompt = torch.randint(1, 60, (prompt_length,), generator=draw)
        for completion in completions:
            n = prompt_length + completion
            columns["token"].append(torch.cat([prompt, torch.randint(1, 60, (completion,), generator=draw)]))
            columns["position"].append(torch.arange(n))
            columns["segment"].append(torch.full((n,), len(lengths)))
            columns["loss_mask"].append(torch.arange(n) >= prompt_length)
            lengths.append(n)
            group.append(index)
    packed = {name: torch.cat(parts) for name, parts in columns.items()}
    order = torch.tensor(lengths)
    segments = torch.arange(len(lengths))
    return TokenBatch(
        columns={**packed, "length": order, "atom": segments, "group": torch.tensor(group)},
        dims=CORE_COLUMNS,
        num_atoms=len(lengths),
    )


GROUPS = st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(0, 7), min_size=1, max_size=5)), min_size=1)


@settings(max_examples=80)
@given(groups=GROUPS, call_cost_tokens=st.integers(0, 20))
def test_shared_prompts_have_one_place_and_every_token_its_position(
    groups: list[tuple[int, list[int]]], call_cost_tokens: int
) -> None:
    batch = prompted(groups)
    prefix_S, leader_S = shared_prefixes(batch)
    layout = bucketed(batch["length"], prefix_S, leader_S, call_cost_tokens=call_cost_tokens)
    assert torch.equal(layout.tokens(batch["token"])[layout.place_T], batch["token"])
    assert torch.equal(layout.position_P[layout.place_T], batch["position"])
    saved = sum(n * (len(trained) - 1) for n, all_ in groups if len(trained := [c for c in all_ if c]) > 1)
    assert layout.place_T.unique().numel() == batch.num_tokens - saved


def test_only_equal_prompts_of_one_group_are_shared() -> None:
    batch = prompted([(4, [2, 3, 1]), (4, [2]), (3, [2, 0])])
    assert shared_prefixes(batch)[0].tolist() == [4, 4, 4, 0, 0, 0]
    token_T = batch["token"].clone()
    token_T[int(batch["length"][0]) + 1] += 1
    other = batch.with_columns(token=token_T)
    assert shared_prefixes(other)[0].tolist() == [4, 0, 4, 0, 0, 0]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_key_value_heads": 2},
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4, "use_sliding_window": True},
    ],
    ids=["grouped", "full heads", "sliding window"],
)
@pytest.mark.parametrize("shares", [False, True], ids=["apart", "shared prompts"])
def test_packed_gradients_equal_those_of_padded(config: dict, shares: bool, tmp_path) -> None:
    batch = random_batch((9, 2, 14, 9, 1, 3)) if not shares else prompted([(5, [3, 7, 3, 1]), (2, [4]), (5, [2, 2, 0])])
    gradients = []
    for attention in ("packed", "padded"):
        network = Network(load_causal_lm(tiny_spec(tmp_path, **config)), attention=attention)
        outputs = network(batch, {"logprob", "entropy"})
        (outputs.logprob_T.square().sum() + outputs.entropy_T.sin().sum()).backward()
        gradients.append({name: parameter.grad for name, parameter in network.named_parameters()})
    torch.testing.assert_close(gradients[0], gradients[1], atol=2e-4, rtol=2e-4)


def test_a_network_names_the_attention_it_cannot_use(tmp_path) -> None:
    softcapped = {"model_type": "gemma2", "attn_logit_softcapping": 5.0, "final_logit_softcapping": None}
    lm = load_causal_lm(tiny_spec(tmp_path, **softcapped, query_pre_attn_scalar=16))
    with pytest.raises(ValueError, match=r"softcap.*attention=\"padded\""):
        Network(lm, attention="packed")
    network = Network(lm, attention="auto")
    assert not network.is_packed


def test_logits_that_are_no_linear_map_are_refused(tmp_path) -> None:
    lm = load_causal_lm(tiny_spec(tmp_path, model_type="gemma2", final_logit_softcapping=1.0, query_pre_attn_scalar=16))
    with pytest.raises(ValueError, match="not a scaled linear map"):
        Network(lm)


def test_a_models_own_logit_scale_is_found(tmp_path) -> None:
    lm = load_causal_lm(tiny_spec(tmp_path, model_type="granite", logits_scaling=4.0))
    network = Network(lm)
    assert network.is_packed
    assert network.logit_scale == pytest.approx(0.25, rel=1e-4)


def test_a_recurrent_model_is_padded(tmp_path, caplog) -> None:
    config = {"model_type": "mamba", "state_size": 4, "conv_kernel": 2, "expand": 2, "time_step_rank": 4}
    network = Network(load_causal_lm(tiny_spec(tmp_path, **config)))
    assert not network.is_packed
    assert "no packed attention" in caplog.text
