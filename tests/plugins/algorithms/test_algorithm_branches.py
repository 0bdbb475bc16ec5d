"""Returns and advantages along conversations that branch, against the tree taken at its word."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_lit.batching import pack, select_atoms
from areal_lit.collation import branch_problem
from areal_lit.token_batch import TokenBatch
from areal_lit.types import Example, Group, Prompt, Trajectory
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.gae import gae, reward_to_go
from areal_lit_algorithms.pieces.normalisation import Normaliser

Name = tuple[int, int, int]
"""Group, sample and turn."""

AS_IT_IS = Normaliser(mean_level="none", std_level="none")


@dataclass(eq=False)
class Turn:
    """A turn of a conversation, what its tokens earned and a critic says of them, and the turns in which it goes on."""

    number: int
    rewards: list[float]
    values: list[float]
    branches: list[Turn] = field(default_factory=list)

    def returns(self, gamma: float, turn_discount: float) -> list[float]:
        """What is still to come from each token on."""
        ahead = [branch.returns(gamma, turn_discount)[0] for branch in self.branches]
        coming = gamma * turn_discount * sum(ahead) / len(ahead) if ahead else 0.0
        result = []
        for reward in reversed(self.rewards):
            result.insert(0, reward + coming)
            coming = gamma * result[0]
        return result

    def advantages(self, gamma: float, lam: float, by_turn: bool) -> list[float]:
        """Generalised advantages, of each token or of the whole turn."""
        ahead = [(branch.values[0], branch.advantages(gamma, lam, by_turn)[0]) for branch in self.branches]
        value_ahead, coming = (sum(each) / len(ahead) for each in zip(*ahead, strict=True)) if ahead else (0.0, 0.0)
        steps = [(sum(self.rewards), self.values[0])] if by_turn else list(zip(self.rewards, self.values, strict=True))
        result = []
        for reward, value in reversed(steps):
            result.insert(0, reward + gamma * value_ahead - value + gamma * lam * coming)
            value_ahead, coming = value, result[0]
        return result * (len(self.rewards) // len(steps))


def drawn_tree(rng: random.Random, size: int) -> list[Turn]:
    """Turns, each after the one it goes on from; the first is the root."""
    turns: list[Turn] = []
    for number in range(size):
        rewards, values = ([round(rng.uniform(-1, 1), 2) for _ in range(3)] for _ in range(2))
        turn = Turn(number, rewards[: (length := rng.randint(1, 3))], values[:length])
        if turns:
            rng.choice(turns).branches.append(turn)
        turns.append(turn)
    return turns


def sequences_of(root: Turn, rng: random.Random) -> list[tuple[int, list[Turn]]]:
    """Every turn once: paths downwards, each with the turn it goes on from; parents first."""
    result, waiting = [], [(-1, root)]
    while waiting:
        parent, turn = waiting.pop(0)
        path = [turn]
        while path[-1].branches and rng.random() < 0.6:
            further = rng.choice(path[-1].branches)
            waiting += [(path[-1].number, other) for other in path[-1].branches if other is not further]
            path.append(further)
        else:
            waiting += [(path[-1].number, other) for other in path[-1].branches]
        result.append((parent, path))
    return result


def trajectory_of(
    path: list[Turn], *, parent: int = -1, prompt_id: int = 0, sample: int = 0, **changes: Any
) -> Trajectory:
    """A prompt's token, then the turns' with a tool's after each."""
    turns = [-1] + [number for turn in path for number in [*[turn.number] * len(turn.rewards), -1]]
    mask = np.array(turns) >= 0
    earned, worth = (
        np.array([0.0] + [x for turn in path for x in [*getattr(turn, name), 0.0]]) for name in ("rewards", "values")
    )
    prompt = Prompt(prompt_id=prompt_id, source="a", row=0, epoch=0, example=Example(prompt="x"))
    values: dict[str, Any] = {
        "token_ids": np.arange(len(turns)), "loss_mask": mask, "logprobs": np.zeros(len(turns), np.float32),
        "versions": np.where(mask, 0, -1), "prompt": prompt, "reward": 0.0, "sample": sample,
        "turn_ids": np.array(turns), "parent_turn": parent, "columns": {"earned": earned, "worth": worth},
    }  # fmt: skip
    return Trajectory(**{**values, **changes})


def packed(trajectories: list[Trajectory]) -> TokenBatch:
    groups = [Group(prompt=each.prompt, trajectories=(each,)) for each in trajectories]
    batch = pack(groups, algorithm_columns={"earned": "T", "worth": "T"})
    return batch.with_columns(value=batch["worth"], final_value=torch.full((batch.num_segments,), 0.5))


def conversations(rng: random.Random) -> tuple[TokenBatch, dict[Name, Turn]]:
    """Three at once, of two samples and two groups with equal turn ids, in any order; and their turns."""
    trajectories, named = [], {}
    for prompt_id, sample in ((0, 0), (0, 1), (1, 0)):
        turns = drawn_tree(rng, rng.randint(1, 9))
        paths = sequences_of(turns[0], rng)
        assert branch_problem([trajectory_of(path, parent=parent) for parent, path in paths]) == ""
        trajectories += [trajectory_of(p, parent=parent, prompt_id=prompt_id, sample=sample) for parent, p in paths]
        named |= {(prompt_id, sample, turn.number): turn for turn in turns}
    batch = packed(trajectories)
    return select_atoms(batch, torch.tensor(rng.sample(range(batch.num_atoms), batch.num_atoms))), named


def assert_each_turn(x_T: torch.Tensor, batch: TokenBatch, expected: dict[Name, list[float]]) -> None:
    assert not x_T[~batch["loss_mask"]].any()
    names = (*(batch.to_tokens(batch[column]).tolist() for column in ("group", "sample")), batch["turn"].tolist())
    found: dict[Name, list[float]] = {}
    for group, sample, turn, value in zip(*names, x_T.tolist(), strict=True):
        if turn >= 0:
            found.setdefault((group, sample, turn), []).append(value)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, abs=1e-6)


@given(seed=st.integers(0, 10**6), gamma=st.sampled_from([1.0, 0.9]), turn_discount=st.sampled_from([1.0, 0.7, 0.0]))
@settings(max_examples=60)
def test_a_turn_is_followed_by_the_mean_of_its_branches(seed: int, gamma: float, turn_discount: float) -> None:
    batch, turns = conversations(random.Random(seed))
    result_T = reward_to_go(batch, batch["earned"].double(), gamma=gamma, turn_discount=turn_discount)
    assert_each_turn(result_T, batch, {name: turn.returns(gamma, turn_discount) for name, turn in turns.items()})


@given(seed=st.integers(0, 10**6), lam=st.sampled_from([1.0, 0.9, 0.0]), level=st.sampled_from(["token", "turn"]))
@settings(max_examples=60)
def test_with_a_critic_too(seed: int, lam: float, level: Any) -> None:
    batch, turns = conversations(random.Random(seed))
    result_T = gae(batch, batch["earned"].double(), gamma=0.9, lam=lam, level=level)
    assert_each_turn(
        result_T, batch, {name: turn.advantages(0.9, lam, level == "turn") for name, turn in turns.items()}
    )


def fork(*, in_copies: bool) -> list[Trajectory]:
    """A turn that goes on in two: before them, or as a copy at the beginning of each."""
    root, left, right = Turn(0, [1.0], [0.0]), Turn(1, [4.0], [0.0]), Turn(2, [8.0, 0.0], [0.0, 0.0])
    if in_copies:
        return [trajectory_of([root, left]), trajectory_of([root, right])]
    return [trajectory_of([root]), trajectory_of([left], parent=0), trajectory_of([right], parent=0)]


def test_copies_get_on_average_what_one_turn_gets_before_its_branches() -> None:
    once, copies = (packed(fork(in_copies=in_copies)) for in_copies in (False, True))
    alone, *_ = reward_to_go(once, once["earned"].double(), turn_discount=0.5)[once["turn"] == 0].tolist()
    both = reward_to_go(copies, copies["earned"].double(), turn_discount=0.5)[copies["turn"] == 0].tolist()
    assert both == [1 + 0.5 * 4, 1 + 0.5 * 8]
    assert alone == sum(both) / 2


def test_rewards_of_sequences_and_turns_go_up_the_tree() -> None:
    root, left, right = fork(in_copies=False)
    algorithm = GRPO(turn_discount=0.5, reward_norm=AS_IT_IS)
    trajectories = [replace(root, columns={}, turn_rewards=(1.0,)), replace(left, columns={}, reward=4.0)]
    trajectories.append(replace(right, columns={}, turn_rewards=(6.0,), reward=2.0))
    group = Group(prompt=root.prompt, trajectories=tuple(trajectories))
    batch = pack([group], algorithm_columns=algorithm.columns)
    assert algorithm.prepare(batch)["advantage"][batch["loss_mask"]].tolist() == [1 + 0.5 * (4 + 8) / 2, 4, 8, 8]


def test_a_branch_that_nobody_scored_says_nothing() -> None:
    root, left, right = fork(in_copies=False)
    lost = replace(right, reward=None, unscored="timeout")
    after = trajectory_of([Turn(3, [100.0], [0.0])], parent=2)
    batch = packed([root, left, lost, after])
    result_T = reward_to_go(batch, batch["earned"].double(), turn_discount=0.5)
    assert result_T[batch["loss_mask"]].tolist() == [1 + 0.5 * 4, 4, 100]


def test_parents_come_first_and_are_known() -> None:
    root, left, right = fork(in_copies=False)
    assert "goes on from turn 0, but earlier trajectories of the episode have generated turns []" in branch_problem(
        [left, root]
    )
    assert "goes on from turn 7, but" in branch_problem([root, left, replace(right, parent_turn=7)])
    first, second = replace(left, parent_turn=2), replace(right, parent_turn=1)
    batch = packed([first, second])
    with pytest.raises(ValueError, match="a turn that goes on from itself"):
        reward_to_go(batch, batch["earned"].double())
