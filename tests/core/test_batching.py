"""Packing trajectories, and taking batches apart and together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_lit.batching import atom_tokens, pack, plan_shards, select_atoms, shard, split_minibatches, unshard
from areal_lit.testing.toy import RaggedGroups
from areal_lit.token_batch import TokenBatch, TokenOutputs
from areal_lit.types import Example, Group, Prompt, StepScore, Trajectory

seeds = st.integers(0, 10_000)


def prompt(prompt_id: int = 7, source: str = "a") -> Prompt:
    return Prompt(prompt_id=prompt_id, source=source, row=0, epoch=0, example=Example(prompt="x"))


def trajectory(tokens: Sequence[int], mask: Sequence[int], **changes: Any) -> Trajectory:
    n = len(tokens)
    values: dict[str, Any] = {
        "token_ids": np.array(tokens),
        "loss_mask": np.array(mask, dtype=bool),
        "logprobs": np.where(mask, -0.5, 0.0).astype(np.float32),
        "versions": np.where(mask, 3, -1),
        "prompt": prompt(),
        "reward": 1.0,
    }
    assert len(mask) == n
    return Trajectory(**{**values, **changes})


def group(*trajectories: Trajectory) -> Group:
    return Group(prompt=trajectories[0].prompt, trajectories=trajectories)


def random_batch(seed: int, *, pairs: bool = False) -> TokenBatch:
    return pack(RaggedGroups(pairs=pairs, offline=pairs).draw(np.random.default_rng(seed)))


def test_pack_lays_out_tokens_segments_and_groups() -> None:
    first = trajectory([5, 6, 7], [0, 1, 1], stop_reason="length", temperature=0.5, reward=2.0)
    second = trajectory([8, 9], [0, 1], sample=1, turn_ids=np.array([-1, 4]))
    other = trajectory([1, 2], [0, 1], prompt=prompt(9, "b"))
    batch = pack([group(first, second), group(other)], source_names=["b", "a"])
    expected = {
        "token": [5, 6, 7, 8, 9, 1, 2],
        "segment": [0, 0, 0, 1, 1, 2, 2],
        "position": [0, 1, 2, 0, 1, 0, 1],
        "loss_mask": [False, True, True, False, True, False, True],
        "logprob": [0, -0.5, -0.5, 0, -0.5, 0, -0.5],
        "version": [-1, 3, 3, -1, 3, -1, 3],
        "turn": [-1, 0, 0, -1, 4, -1, 0],
        "turn_reward": [0.0] * 7,
        "turn_scored": [False] * 7,
        "length": [3, 2, 2],
        "atom": [0, 1, 2],
        "group": [7, 7, 9],
        "sample": [0, 1, 0],
        "reward": [2.0, 1.0, 1.0],
        "scored": [True, True, True],
        "parent_turn": [-1, -1, -1],
        "truncated": [True, False, False],
        "temperature": [0.5, 1.0, 1.0],
        "source": [1, 1, 0],
    }
    assert {name: column.tolist() for name, column in batch.columns.items()} == expected
    assert batch.num_atoms == 3


def test_rewards_of_turns_land_on_the_last_generated_token_of_their_turn() -> None:
    turns = {"turn_ids": np.array([-1, 0, 0, -1, 1]), "turn_rewards": (0.5, -2.0)}
    talk = trajectory([1, 2, 3, 4, 5], [0, 1, 1, 0, 1], **turns)
    single = trajectory([1, 2], [0, 1], sample=1, turn_rewards=(3.0,))
    broken = trajectory([1, 2], [0, 1], sample=2, turn_rewards=(float("nan"),))
    batch = pack([group(talk, single, broken)])
    assert batch["turn_reward"].tolist() == [0, 0, 0.5, 0, -2.0, 0, 3.0, 0, 0]
    assert batch["turn_scored"].nonzero()[:, 0].tolist() == [2, 4, 6]
    assert batch["scored"].tolist() == [True, True, False]


def test_scores_of_steps_stand_on_their_tokens_beside_rewards_of_turns() -> None:
    def steps(*pairs: tuple[int, float]) -> tuple[StepScore, ...]:
        return tuple(StepScore(last_token=token, value=value) for token, value in pairs)

    talk = trajectory([1, 2, 3, 4], [0, 1, 1, 1], step_scores=steps((1, 0.0), (3, 2.0), (3, 1.0)), turn_rewards=(5.0,))
    broken = trajectory([1, 2], [0, 1], sample=1, step_scores=steps((1, float("inf"))))
    batch = pack([group(talk, broken)])
    assert batch["turn_reward"].tolist() == [0, 0, 0, 8, 0, 0]
    assert batch["turn_scored"].nonzero()[:, 0].tolist() == [1, 3]
    assert batch["scored"].tolist() == [True, False]
    for token in (0, 2, -1):
        with pytest.raises(ValueError, match="step_scores at tokens that the policy did not choose"):
            pack([group(trajectory([1, 2], [0, 1], step_scores=steps((token, 1.0))))])


@pytest.mark.parametrize("rewards", [(1.0,), (1.0, 2.0, 3.0)])
def test_rewards_of_turns_without_tokens_are_refused(rewards: tuple[float, ...]) -> None:
    talk = trajectory([1, 2, 3], [0, 1, 1], turn_ids=np.array([-1, 0, 1]), turn_rewards=rewards)
    with pytest.raises(ValueError, match=rf"has {len(rewards)} turn_rewards, but generated tokens in turns \[0, 1\]"):
        pack([group(talk)])


def test_members_of_an_atom_become_neighbours() -> None:
    marked = [trajectory([i, 1], [0, 1], atom=atom) for i, atom in enumerate([1, -1, 0, 1, 0])]
    batch = pack([group(*marked), group(*marked[:1])])
    assert batch["token"][::2].tolist() == [0, 3, 1, 2, 4, 0]
    assert batch["atom"].tolist() == [0, 0, 1, 2, 2, 3]


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": None, "unscored": "timeout"}, {"reward": float("nan")}, {"reward": float("inf")}, {"reward": -1e39},
        {"turn_rewards": (1e39,)}, {"step_scores": (StepScore(last_token=1, value=-1e39),)},
    ],
)  # fmt: skip
def test_unscored_samples_are_not_trained(changes: dict[str, Any]) -> None:
    batch = pack([group(trajectory([1, 2], [0, 1], **changes), trajectory([3, 4], [0, 1]))])
    assert batch["scored"].tolist() == [False, True]
    assert batch["loss_mask"].tolist() == [False, False, False, True]
    assert batch["reward"].tolist() == [0.0, 1.0]


def test_data_that_nobody_scores_counts_as_scored() -> None:
    batch = pack([group(trajectory([1, 2], [0, 1], reward=None, versions=np.array([-1, -1])))])
    assert batch["scored"].tolist() == [True]
    assert batch["loss_mask"].tolist() == [False, True]


def test_a_rollout_that_nobody_scored_is_refused_and_no_zero() -> None:
    with pytest.raises(ValueError, match=r"sample 0 of prompt 7 .* has neither a reward nor a reason"):
        pack([group(trajectory([1, 2], [0, 1], reward=None, versions=np.array([-1, 3])))])


def test_rollouts_whose_rewards_are_not_needed_are_trained_with_or_without_one() -> None:
    bare = trajectory([1, 2], [0, 1], reward=None, versions=np.array([-1, 3]))
    lost = trajectory([1, 2], [0, 1], reward=None, unscored="timeout", sample=2)
    batch = pack([group(bare, trajectory([3, 4], [0, 1], sample=1), lost)], needs_rewards=False)
    assert batch["scored"].tolist() == [True, True, False]
    assert batch["reward"].tolist() == [0.0, 1.0, 0.0]
    assert batch["loss_mask"].tolist() == [False, True, False, True, False, False]


def test_columns_of_trajectories_land_in_declared_columns() -> None:
    members = [
        trajectory([1, 2], [0, 1], atom=0, columns={"gap": np.array([0.0, i]), "sign": i, "pair": 10 + i})
        for i in range(2)
    ]
    batch = pack([group(*members)], algorithm_columns={"gap": "T", "sign": "S", "pair": "A"})
    assert batch["gap"].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert batch["gap"].dtype == torch.float32
    assert batch["sign"].tolist() == [0, 1]
    assert batch["pair"].tolist() == [10]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"loss_mask": np.array([True, True])}, "sample 0 of prompt 7 .* trains its first token"),
        ({"versions": np.array([1])}, "has 2 token_ids, but versions has 1"),
        ({"logprobs": np.array([0.0, np.nan], dtype=np.float32)}, "behaviour log-prob nan at token 1"),
        ({"reward": None}, "neither a reward nor a reason"),
        ({"columns": {"advantage": 1.0}}, "'advantage', which is not declared"),
        ({"columns": {"token": 1.0}}, "'token', which is filled by the core"),
        ({"columns": {"mine": 1.0}}, "sample 5 .* lacks the column 'mine'"),
        ({"prompt": prompt(7, "z")}, r"prompts come from \['z'\]"),
    ],
)
def test_malformed_trajectories_are_named(changed: dict[str, Any], message: str) -> None:
    broken = replace(trajectory([1, 2], [0, 1]), **changed)
    with pytest.raises(ValueError, match=message):
        pack(
            [group(broken, trajectory([1, 2], [0, 1], sample=5))],
            algorithm_columns={"mine": "S"},
            source_names=["a"],
        )


def test_refuses_empty_steps_sequences_and_clashing_columns() -> None:
    with pytest.raises(ValueError, match="at least one trajectory"):
        pack([])
    with pytest.raises(ValueError, match="has no tokens"):
        pack([group(trajectory([], []))])
    with pytest.raises(ValueError, match="'reward', which is one of the core's"):
        pack([group(trajectory([1], [0]))], algorithm_columns={"reward": "S"})
    with pytest.raises(ValueError, match="dimension 'X'"):
        pack([group(trajectory([1], [0]))], algorithm_columns={"mine": "X"})  # type: ignore[dict-item]
    bad = trajectory([1, 2], [0, 1], columns={"mine": np.zeros(3)})
    with pytest.raises(ValueError, match="has shape"):
        pack([group(bad)], algorithm_columns={"mine": "T"})


@given(seeds, st.booleans())
@settings(max_examples=30)
def test_selecting_atoms_keeps_every_row_with_its_atom(seed: int, pairs: bool) -> None:
    batch = random_batch(seed, pairs=pairs)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(batch.num_atoms))
    shuffled = select_atoms(batch, order)
    assert torch.equal(shuffled["segment"].diff().clamp(min=0), shuffled["segment"].diff())
    assert torch.equal(shuffled.segment_sum(torch.ones(batch.num_tokens)).long(), shuffled["length"])
    back = select_atoms(shuffled, order.argsort())
    for name, column in batch.columns.items():
        assert torch.equal(column, back[name]), name


@given(seeds, st.integers(1, 4), st.booleans())
@settings(max_examples=30)
def test_minibatches_hold_every_atom_once(seed: int, num: int, pairs: bool) -> None:
    batch = random_batch(seed, pairs=pairs)
    minibatches = split_minibatches(batch, num, seed=seed)
    assert len(minibatches) == min(num, batch.num_atoms)
    assert all(m.num_atoms for m in minibatches)
    seen = sorted((g, s) for m in minibatches for g, s in zip(m["group"].tolist(), m["sample"].tolist(), strict=True))
    assert seen == sorted(zip(batch["group"].tolist(), batch["sample"].tolist(), strict=True))


def test_minibatches_are_balanced_and_drawn_by_seed() -> None:
    members = [trajectory([1] * n, [0] * n, sample=n) for n in range(1, 41)]
    batch = pack([group(*members)])
    first, again, other = (split_minibatches(batch, 4, seed=s) for s in (0, 0, 1))
    tokens = [m.num_tokens for m in first]
    assert max(tokens) - min(tokens) <= 2
    assert [m["sample"].tolist() for m in first] == [m["sample"].tolist() for m in again]
    assert [m["sample"].tolist() for m in first] != [m["sample"].tolist() for m in other]


def test_a_batch_too_short_for_the_mini_batches_is_trained_an_atom_each() -> None:
    batch = pack([group(*(trajectory([1, 2], [0, 1], sample=n) for n in range(2)))])
    assert [m["sample"].tolist() for m in split_minibatches(batch, 4, seed=0)] in ([[0], [1]], [[1], [0]])
    assert len(split_minibatches(pack([group(trajectory([1, 2], [0, 1]))]), 4, seed=0)) == 1
    with pytest.raises(ValueError, match="num_minibatches must be >= 1, got 0"):
        split_minibatches(batch, 0, seed=0)


@given(seeds, st.integers(1, 5), st.sampled_from(["ffd", "kk"]), st.booleans())
@settings(max_examples=40)
def test_shards_hold_every_atom_once_within_the_budget(seed: int, num_shards: int, packing: Any, pairs: bool) -> None:
    batch = random_batch(seed, pairs=pairs)
    batch = batch.with_columns(token_weight=torch.ones(batch.num_tokens))
    budget = int(atom_tokens(batch).max()) + 3
    plan = plan_shards(batch, num_shards=num_shards, max_tokens=budget, packing=packing)
    assert {len(bins) for bins in plan.microbatches} == {plan.num_microbatches}
    placed = torch.cat([atoms for bins in plan.microbatches for atoms in bins])
    assert sorted(placed.tolist()) == list(range(batch.num_atoms))
    outputs = []
    for bins, batches in zip(plan.microbatches, shard(batch, plan), strict=True):
        for atoms, microbatch in zip(bins, batches, strict=True):
            assert microbatch.num_tokens <= budget
            if not len(atoms):
                assert microbatch.num_tokens == int(atom_tokens(batch).min())
                assert not microbatch["loss_mask"].any()
                assert not microbatch["token_weight"].any()
        outputs.append([stamp(microbatch) for microbatch in batches])
    whole, expected = unshard(batch, plan, outputs), stamp(batch)
    assert torch.equal(whole.logprob_T, expected.logprob_T)
    assert torch.equal(whole.final_value_S, expected.final_value_S)
    assert whole.entropy_T is None


def stamp(batch: TokenBatch) -> TokenOutputs:
    """Outputs that tell where they came from."""
    name_S = batch["group"] * 1000 + batch["sample"]
    return TokenOutputs(
        logprob_T=(batch.to_tokens(name_S) * 1000 + batch["position"]).double(), final_value_S=name_S.float()
    )


def test_shards_are_balanced() -> None:
    members = [trajectory([1] * n, [0] * n) for n in (10, 10, 1, 1, 1, 1, 8, 8)]
    plan = plan_shards(pack([group(*members)]), num_shards=2, max_tokens=20, packing="ffd")
    sizes = atom_tokens(pack([group(*members)]))
    assert [int(sum(sizes[a].sum() for a in bins)) for bins in plan.microbatches] == [20, 20]


def test_one_microbatch_for_everything_is_the_batch_itself() -> None:
    batch = random_batch(0)
    plan = plan_shards(batch, num_shards=1, max_tokens=10_000, packing="ffd")
    assert shard(batch, plan)[0][0] is batch


def test_a_sequence_longer_than_the_budget_is_named() -> None:
    single = pack([group(trajectory([1] * 9, [0] * 9))])
    with pytest.raises(ValueError, match="a sequence of 9 tokens does not fit max_tokens_per_microbatch=8"):
        plan_shards(single, num_shards=1, max_tokens=8, packing="ffd")
    pair = pack([group(*[trajectory([1] * 5, [0] * 5, atom=0)] * 2)])
    with pytest.raises(ValueError, match="a pair of 10 tokens"):
        plan_shards(pair, num_shards=1, max_tokens=8, packing="ffd")
