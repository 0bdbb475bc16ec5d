"""DPO's maths on the contracts: conformance, pairs that stay together, the loss by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from strainer_dpo import DPO

from areal_lit.batching import pack, plan_shards, shard, split_minibatches
from areal_lit.testing.algorithm import check_algorithm
from areal_lit.testing.tiny import tiny_spec
from areal_lit.text import TextCodec
from areal_lit.token_batch import TokenBatch, TokenOutputs
from areal_lit.types import Example, Group, Prompt


def pairs(tmp_path: Path, num: int = 6) -> TokenBatch:
    codec = TextCodec(tiny_spec(tmp_path))
    groups = []
    for i in range(num):
        example = Example(prompt=f"{i}+1=", fields={"chosen": str(i + 1), "rejected": "9" * (i + 1)})
        prompt = Prompt(prompt_id=i, source="a", row=i, epoch=0, example=example)
        groups.append(Group(prompt=prompt, trajectories=tuple(DPO().encode(prompt, codec))))
    return pack(groups, algorithm_columns=DPO().columns)


def test_conformance() -> None:
    check_algorithm(DPO(), pairs=True, columns=lambda rng, index, n: {"sign": 1.0 - 2.0 * index})


def test_pairs_stay_together(tmp_path: Path) -> None:
    batch = pairs(tmp_path)
    assert (batch.num_atoms, batch.num_segments) == (6, 12)
    for minibatch in split_minibatches(batch, 3, seed=0):
        plan = plan_shards(minibatch, num_shards=2, max_tokens=40, packing="kk")
        for shard_batches in shard(minibatch, plan):
            for microbatch in shard_batches:
                assert microbatch["sign"].tolist() == [1.0, -1.0] * microbatch.num_atoms


def test_loss_by_hand(tmp_path: Path) -> None:
    algorithm = DPO(beta=0.5)
    batch = pairs(tmp_path, num=1)
    is_chosen_T = batch.to_tokens(batch["sign"]) > 0
    first_T = batch["loss_mask"] & (batch["turn"].roll(1) == -1)
    batch = batch.with_columns(reference=torch.zeros(batch.num_tokens))
    logprob_T = torch.where(first_T, torch.where(is_chosen_T, -1.0, -3.0), 0.0).requires_grad_()
    loss = algorithm.pair_loss(TokenOutputs(logprob_T=logprob_T), batch)
    assert loss.values.tolist() == pytest.approx([math.log(1 + math.exp(-0.5 * 2.0))])
    assert [m.value for m in loss.metrics] == [1.0]
