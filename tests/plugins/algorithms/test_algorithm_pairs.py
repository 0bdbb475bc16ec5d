"""Pairs for dpo and reward_model: conformance, what is encoded, what stays together."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from areal_lit.batching import pack, plan_shards, shard, split_minibatches
from areal_lit.testing.algorithm import check_algorithm
from areal_lit.testing.tiny import tiny_spec
from areal_lit.text import TextCodec
from areal_lit.token_batch import TokenOutputs
from areal_lit.types import Example, Group, Prompt
from areal_lit_algorithms.dpo import DPO
from areal_lit_algorithms.pairs import PairAlgorithm
from areal_lit_algorithms.reward_model import RewardModel


@pytest.fixture
def codec(tmp_path: Path) -> TextCodec:
    return TextCodec(tiny_spec(tmp_path))


def row(prompt: Any = "1+1=", number: int = 3, **fields: Any) -> Prompt:
    return Prompt(prompt_id=number, source="a", row=number, epoch=0, example=Example(prompt=prompt, fields=fields))


ALGORITHMS = [DPO(), DPO(loss="ipo"), DPO(loss="hinge", beta=0.5), RewardModel()]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["sigmoid", "ipo", "hinge", "reward_model"])
def test_conformance(algorithm: PairAlgorithm) -> None:
    check_algorithm(algorithm, pairs=True, columns=lambda rng, index, n: {"sign": 1.0 - 2.0 * index})


def test_half_a_pair_and_a_tie_count_for_nothing(codec: TextCodec) -> None:
    algorithm = RewardModel()
    groups = [
        Group(
            prompt=row(number=i), trajectories=tuple(algorithm.encode(row(number=i, chosen="2", rejected="3"), codec))
        )
        for i in range(3)
    ]
    batch = pack(groups, algorithm_columns=algorithm.columns)
    mask_T = batch["loss_mask"] & (batch["segment"] != 0)
    batch = algorithm.weigh(batch.with_columns(loss_mask=mask_T))
    assert batch["atom_weight"].tolist() == [0.0, 0.5, 0.5]
    made = algorithm.pair_loss(TokenOutputs(final_value_S=torch.tensor([math.nan, 5.0, 1.0, 1.0, 2.0, 0.0])), batch)
    metrics = {metric.name: metric.value for metric in made.metrics}
    assert metrics == {"pair_accuracy": 0.5, "reward_margin": 1.0, "reward_chosen": 1.5, "reward_rejected": 0.5}


def test_the_prompt_is_what_the_row_says(codec: TextCodec) -> None:
    chosen, rejected = DPO().encode(row("1+1=", chosen="123", rejected="12"), codec)
    start, end = codec.encode("1+1=").tolist(), codec.end_token_ids[0]
    for side, text, sign in ((chosen, "123", 1.0), (rejected, "12", -1.0)):
        completion = [*codec.encode(text).tolist(), end]
        assert side.token_ids.tolist() == [*start, *completion]
        assert side.loss_mask.tolist() == [False] * len(start) + [True] * len(completion)
        assert (side.atom, side.columns["sign"]) == (0, sign)


def test_drawn_tokens_are_taken_as_they_are(codec: TextCodec) -> None:
    one, end = int(codec.encode("1")[0]), codec.end_token_ids[0]
    assert codec.encode("11").tolist() != [one, one]
    start = codec.encode("1+1=").tolist()
    for side, drawn in zip(
        DPO().encode(row(chosen=[one, one, end], rejected=(one,)), codec), ([one, one, end], [one]), strict=True
    ):
        assert side.token_ids.tolist() == [*start, *drawn]
        assert side.loss_mask.tolist() == [False] * len(start) + [True] * len(drawn)
        assert side.text == "1" * drawn.count(one)
    for same in ([one], (one,)):
        assert DPO().encode(row(chosen=[one], rejected=same), codec) == []


def test_pairs_stay_together(codec: TextCodec) -> None:
    algorithm = DPO()
    groups = []
    for i in range(6):
        prompt = row(f"{i}+1=", i, chosen=str(i + 1), rejected="9" * (i + 2))
        groups.append(Group(prompt=prompt, trajectories=tuple(algorithm.encode(prompt, codec))))
    batch = pack(groups, algorithm_columns=algorithm.columns)
    assert (batch.num_atoms, batch.num_segments) == (6, 12)
    for minibatch in split_minibatches(batch, 3, seed=0):
        plan = plan_shards(minibatch, num_shards=2, max_tokens=40, packing="kk")
        for shard_batches in shard(minibatch, plan):
            for microbatch in shard_batches:
                assert microbatch["sign"].tolist() == [1.0, -1.0] * microbatch.num_atoms


def test_a_side_that_is_left_out_takes_the_other_with_it(codec: TextCodec) -> None:
    uneven = row("1+2=", chosen="3", rejected="34567")
    chosen, rejected = DPO().encode(uneven, codec)
    short, long = len(chosen.token_ids), len(rejected.token_ids)
    with pytest.raises(ValueError, match=f"row 3 of a has {long} tokens, more than max_length {short}"):
        DPO(max_length=short).encode(uneven, codec)
    assert DPO(max_length=short, too_long="drop").encode(uneven, codec) == []
    cut = DPO(max_length=short, too_long="truncate").encode(uneven, codec)
    assert [(len(side.token_ids), side.stop_reason) for side in cut] == [(short, "stop"), (short, "length")]
    assert DPO(max_length=2, too_long="truncate").encode(uneven, codec) == []
    assert DPO().encode(row(chosen="3", rejected="3"), codec) == []


def test_sides_that_are_the_same_once_they_are_cut_off_compare_nothing(codec: TextCodec) -> None:
    late = row("1+2=", chosen="34", rejected="35")
    length = len(DPO().encode(late, codec)[0].token_ids)
    assert len(DPO(max_length=length - 1, too_long="truncate").encode(late, codec)) == 2
    assert DPO(max_length=length - 2, too_long="truncate").encode(late, codec) == []


def test_rows_that_are_no_preference_are_refused(codec: TextCodec) -> None:
    with pytest.raises(
        ValueError, match=r"needs a string or token ids in field 'rejected', got list; .*preference_jsonl"
    ):
        DPO().encode(row(chosen="2", rejected=[{"role": "assistant", "content": "3"}]), codec)
    with pytest.raises(ValueError, match="needs a string or token ids in field 'chosen', got list"):
        DPO().check(Example(prompt="x", fields={"chosen": [], "rejected": "3"}))
    with pytest.raises(ValueError, match="needs a string or token ids in field 'good', got NoneType"):
        RewardModel(chosen_field="good").encode(row(chosen="2", rejected="3"), codec)
    with pytest.raises(ValueError, match="prefers a completion to itself: both sides are '3'"):
        DPO().check(Example(prompt="x", fields={"chosen": "3", "rejected": "3"}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beta": 0.0}, "beta must be finite and > 0, got 0.0"),
        ({"loss": "kto"}, "loss must be sigmoid, ipo or hinge, got 'kto'"),
        ({"max_length": 1}, "max_length must be >= 2"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DPO(**arguments)
