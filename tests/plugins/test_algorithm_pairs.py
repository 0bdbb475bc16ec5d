"""Pairs for dpo and reward_model: conformance, what is encoded, what stays together, losses as trl computes them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from areal_lit.batching import pack, plan_shards, shard, split_minibatches
from areal_lit.testing.algorithm import check_algorithm
from areal_lit.testing.tiny import tiny_spec
from areal_lit.text import TextCodec
from areal_lit.token_batch import Loss, TokenBatch, TokenOutputs, weighted_sum
from areal_lit.types import Example, Group, Prompt, Trajectory
from areal_lit_algorithms.dpo import DPO
from areal_lit_algorithms.pairs import PairAlgorithm
from areal_lit_algorithms.reward_model import RewardModel

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "trl_preferences.json").read_text())
SIDES = [pair[name] for pair in GOLDEN["pairs"] for name in ("chosen", "rejected")]


@pytest.fixture
def codec(tmp_path: Path) -> TextCodec:
    return TextCodec(tiny_spec(tmp_path))


def row(prompt: Any = "1+1=", number: int = 3, **fields: Any) -> Prompt:
    return Prompt(prompt_id=number, source="a", row=number, epoch=0, example=Example(prompt=prompt, fields=fields))


def trajectory(side: dict[str, Any], prompt: Prompt, sign: float) -> Trajectory:
    n = len(side["mask"])
    return Trajectory(
        token_ids=np.zeros(n, dtype=np.int64), loss_mask=np.array(side["mask"], dtype=bool),
        logprobs=np.zeros(n, dtype=np.float32), versions=np.full(n, -1), prompt=prompt, sample=int(sign < 0), atom=0,
        columns={"sign": sign},
    )  # fmt: skip


def golden_batch(algorithm: PairAlgorithm) -> TokenBatch:
    groups = []
    for number, pair in enumerate(GOLDEN["pairs"]):
        prompt = row(number=number)
        sides = (trajectory(pair["chosen"], prompt, 1.0), trajectory(pair["rejected"], prompt, -1.0))
        groups.append(Group(prompt=prompt, trajectories=sides))
    return algorithm.weigh(algorithm.prepare(pack(groups, algorithm_columns=algorithm.columns)))


def per_token(name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor([x for side in SIDES for x in side[name]], dtype=dtype)


def trls_order(x: Tensor) -> Tensor:
    """Per side, all chosen ones first."""
    return torch.cat([x[0::2], x[1::2]])


def check_against_trl(loss: Loss, batch: TokenBatch, expected: dict[str, Any]) -> None:
    metrics = {metric.name: metric.value for metric in loss.metrics}
    assert weighted_sum(loss, batch).item() == pytest.approx(expected["loss"], rel=1e-6)
    theirs = {"accuracies": "pair_accuracy", "margins": "reward_margin", "chosen": "reward_chosen"}
    theirs["rejected"] = "reward_rejected"
    for name, value in expected["metrics"].items():
        assert metrics[theirs[name]] == pytest.approx(value, abs=1e-6)


ALGORITHMS = [DPO(), DPO(loss="ipo"), DPO(loss="hinge", beta=0.5), RewardModel()]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["sigmoid", "ipo", "hinge", "reward_model"])
def test_conformance(algorithm: PairAlgorithm) -> None:
    check_algorithm(algorithm, pairs=True, columns=lambda rng, index, n: {"sign": 1.0 - 2.0 * index})


@pytest.mark.parametrize("loss", ["sigmoid", "ipo", "hinge"])
def test_dpo_equals_trl(loss: Any) -> None:
    expected = GOLDEN["dpo"][loss]
    algorithm = DPO(loss=loss, beta=expected["beta"])
    batch = golden_batch(algorithm).with_columns(reference=per_token("reference"))
    logprob_T = per_token("current").requires_grad_()
    made = algorithm.pair_loss(TokenOutputs(logprob_T=logprob_T), batch)
    check_against_trl(made, batch, expected)
    (slope_T,) = torch.autograd.grad(weighted_sum(made, batch), logprob_T)
    slope_S = trls_order(batch.segment_mean(slope_T))
    torch.testing.assert_close(slope_S, torch.tensor(expected["gradient"]), rtol=1e-5, atol=1e-8)
    assert not slope_T[~batch["loss_mask"]].any()


@pytest.mark.parametrize("loss", ["sigmoid", "ipo", "hinge"])
def test_dpo_equals_its_closed_form(loss: Any) -> None:
    algorithm = DPO(loss=loss, beta=0.3)
    reference_T, current_T = (per_token(name, torch.float64) for name in ("reference", "current"))
    batch = golden_batch(algorithm).with_columns(reference=reference_T)
    made = algorithm.pair_loss(TokenOutputs(logprob_T=current_T), batch)
    expected = []
    for pair in GOLDEN["pairs"]:
        ratios = []
        for side in (pair["chosen"], pair["rejected"]):
            differences = [
                c - r for c, r, m in zip(*(side[k] for k in ("current", "reference", "mask")), strict=True) if m
            ]
            ratios.append(math.fsum(differences) / (len(differences) if loss == "ipo" else 1))
        m = ratios[0] - ratios[1]
        losses = {"sigmoid": math.log1p(math.exp(-0.3 * m)), "ipo": (m - 1 / 0.6) ** 2, "hinge": max(0.0, 1 - 0.3 * m)}
        expected.append(losses[loss])
    assert made.values.tolist() == pytest.approx(expected, rel=1e-12)


def test_reward_model_equals_trl() -> None:
    algorithm, expected = RewardModel(), GOLDEN["reward_model"]
    batch = golden_batch(algorithm)
    score_S = torch.tensor([side["score"] for side in SIDES]).requires_grad_()
    made = algorithm.pair_loss(TokenOutputs(final_value_S=score_S), batch)
    check_against_trl(made, batch, expected)
    (slope_S,) = torch.autograd.grad(weighted_sum(made, batch), score_S)
    torch.testing.assert_close(trls_order(slope_S), torch.tensor(expected["gradient"]), rtol=1e-5, atol=1e-8)


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


def test_rows_that_are_no_preference_are_refused(codec: TextCodec) -> None:
    with pytest.raises(ValueError, match=r"needs a string in field 'rejected', got list; .*preference_jsonl"):
        DPO().encode(row(chosen="2", rejected=[{"role": "assistant", "content": "3"}]), codec)
    with pytest.raises(ValueError, match="needs a string in field 'good', got NoneType"):
        RewardModel(chosen_field="good").encode(row(chosen="2", rejected="3"), codec)
    with pytest.raises(ValueError, match="prefers a completion to itself: both sides are '3'"):
        DPO().check(Example(prompt="x", fields={"chosen": "3", "rejected": "3"}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beta": 0.0}, "beta must be > 0, got 0.0"),
        ({"loss": "kto"}, "loss must be sigmoid, ipo or hinge, got 'kto'"),
        ({"max_length": 1}, "max_length must be >= 2"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DPO(**arguments)
