"""Advantages over tokens and turns against their recursions, on ragged batches and by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import algorithm_reference as reference
import numpy as np
import pytest
import torch
from algorithm_batches import make_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_lit.batching import pack
from areal_lit.testing.algorithm_case import AlgorithmCase
from areal_lit.testing.toy import RaggedGroups
from areal_lit.token_batch import TokenBatch
from areal_lit.types import Example, Group, Prompt, Trajectory
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.gae import LengthLambda, Steps, at_last_token, gae, reward_to_go, to_go
from areal_lit_algorithms.pieces.normalisation import Normaliser
from areal_lit_algorithms.ppo import PPO
from areal_lit_algorithms.reinforce_pp import ReinforcePP


def ragged(seed: int) -> TokenBatch:
    case = AlgorithmCase(algorithm=PPO(), draw=RaggedGroups(), seed=seed)
    return case.packed(case.groups())


@given(
    seed=st.integers(0, 10**6),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
    level=st.sampled_from(["token", "turn"]),
)
@settings(max_examples=40)
def test_gae_is_its_recursion(seed: int, gamma: float, lam: float, level: Any) -> None:
    batch = ragged(seed)
    reward_T = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    result_T = gae(batch, reward_T, gamma=gamma, lam=lam, level=level)
    assert not result_T[~batch["loss_mask"]].any()
    rewards = iter(reward_T[batch["loss_mask"]].tolist())
    expected: list[float] = []
    for sample in reference.samples_of(batch, batch["logprob"]):
        own = [next(rewards) for _ in sample.tokens]
        expected += reference.estimate_advantages(sample, own, gamma=gamma, lam=lam, by_turn=level == "turn")
    assert result_T[batch["loss_mask"]].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("level", ["token", "turn"])
def test_lambda_may_depend_on_the_length(level: Any) -> None:
    batch = ragged(5)
    reward_T = torch.ones(batch.num_tokens)
    steps = Steps.of(batch, level)
    for lam in (LengthLambda(alpha=0.3), LengthLambda(q=0.5)):
        result_T = gae(batch, reward_T, gamma=0.9, lam=lam, level=level)
        for segment in steps.segment_N.unique().tolist():
            length = int((steps.segment_N == segment).sum())
            alone_T = gae(batch, reward_T, gamma=0.9, lam=float(lam(torch.tensor(length))), level=level)
            mine_T = batch["segment"] == segment
            assert torch.allclose(result_T[mine_T], alone_T[mine_T], atol=1e-12)


def test_length_lambdas_by_hand() -> None:
    lengths = torch.tensor([1, 2, 20, 40])
    assert LengthLambda(alpha=0.05)(lengths).tolist() == pytest.approx([0.0, 0.0, 0.0, 0.5])
    assert LengthLambda(q=0.25)(lengths)[:3].tolist() == pytest.approx([0.25, 0.25, 0.25 ** (1 / 19)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "lam takes alpha or q, got alpha None and q None"),
        ({"alpha": 1.0, "q": 0.5}, "lam takes alpha or q"),
        ({"alpha": 0.0}, "alpha must be > 0, got 0.0"),
        ({"q": 1.5}, r"q must be in \(0, 1\], got 1.5"),
    ],
)
def test_wrong_lambdas_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LengthLambda(**arguments)


def conversation(
    turns: Sequence[int], turn_rewards: tuple[float, ...], *, reward: float = 0.0, stop_reason: str = "stop"
) -> Group:
    """A prompt token, then one token per entry; -1 is a tool's."""
    prompt = Prompt(prompt_id=0, source="a", row=0, epoch=0, example=Example(prompt="x"))
    turn = np.array([-1, *turns])
    trajectory = Trajectory(
        token_ids=np.arange(len(turn)), loss_mask=turn >= 0, logprobs=np.zeros(len(turn), dtype=np.float32),
        versions=np.where(turn >= 0, 0, -1), prompt=prompt, reward=reward, stop_reason=stop_reason,  # type: ignore[arg-type]
        turn_ids=turn, turn_rewards=turn_rewards,
    )  # fmt: skip
    return Group(prompt=prompt, trajectories=(trajectory,))


@pytest.mark.parametrize(("stop_reason", "after"), [("stop", 0.0), ("length", 6.0)])
def test_only_a_truncated_sequence_bootstraps(stop_reason: str, after: float) -> None:
    batch = pack([conversation([0, -1, 0, 0], (), stop_reason=stop_reason)])
    batch = batch.with_columns(value=torch.tensor([99.0, 1.0, 99.0, 2.0, 4.0]), final_value=torch.tensor([6.0]))
    last = 10 + 0.5 * after - 4
    middle = 0.5 * 4 - 2 + 0.5 * 0.8 * last
    first = 0.5 * 2 - 1 + 0.5 * 0.8 * middle
    advantages = gae(batch, at_last_token(torch.tensor([10.0]), batch), gamma=0.5, lam=0.8)
    assert advantages.tolist() == pytest.approx([0.0, first, 0.0, middle, last])


def test_rewards_of_turns_stay_on_their_turn_and_count_less_for_those_before() -> None:
    """Turn ids carry no order: what comes first in the sequence comes first."""
    algorithm = GRPO(turn_discount=0.5, reward_norm=Normaliser(mean_level="none", std_level="none"))
    batch = pack(
        [conversation([1, 1, -1, 0, -1, 2, 2], (3.0, 10.0, 7.0), reward=1.0)], algorithm_columns={"advantage": "T"}
    )
    last, middle = 7.0 + 1.0, 3.0 + 0.5 * 8.0
    first = 10.0 + 0.5 * middle
    expected = [0, first, first, 0, middle, 0, last, last]
    assert algorithm.prepare(batch)["advantage"].tolist() == pytest.approx(expected)


def test_a_turn_that_is_taken_up_again_is_one_step() -> None:
    batch = pack([conversation([0, -1, 1, 0], ())])
    steps = Steps.of(batch, "turn")
    assert (steps.step_M.tolist(), steps.first_N.tolist()) == ([0, 1, 0], [1, 3])
    assert steps.sums(torch.tensor([9.0, 1.0, 9.0, 2.0, 4.0])).tolist() == [5.0, 2.0]


def test_without_discount_everything_still_to_come_counts() -> None:
    batch = make_batch(GRPO(), [1, 1, 1], [0.0] * 3, [[1, 0, 1], [0], [1]])
    reward_T = torch.tensor([9.0, 1.0, 9.0, 2.0, 9.0, 9.0, 9.0, 4.0])
    assert reward_to_go(batch, reward_T).tolist() == [0, 3, 0, 2, 0, 0, 0, 4]
    assert reward_to_go(batch, reward_T, gamma=0.5).tolist() == [0, 2, 0, 2, 0, 0, 0, 4]


def test_reinforce_pp_discounts_per_token() -> None:
    algorithm = ReinforcePP(gamma=0.5, advantage_norm=None, kl_weight=0.0)
    batch = make_batch(algorithm, [1], [8.0], [[1, 0, 1, 1]])
    assert algorithm.prepare(batch)["advantage"].tolist() == [0, 2, 0, 4, 8]


def test_a_step_without_loss_tokens_has_no_advantages() -> None:
    batch = make_batch(PPO(), [1, 1], [None, None])
    batch = batch.with_columns(value=torch.zeros(6), final_value=torch.zeros(2))
    for level in ("token", "turn"):
        assert not gae(batch, torch.ones(6), gamma=1.0, lam=1.0, level=level).any()  # type: ignore[arg-type]


def test_the_input_stays_as_it_was() -> None:
    x_N = torch.ones(3, dtype=torch.float64)
    to_go(x_N, x_N, torch.zeros(3, dtype=torch.int64))
    assert x_N.tolist() == [1.0] * 3


def test_the_critic_learns_value_plus_advantage_of_its_own_lambda() -> None:
    algorithm = PPO(lam=0.5, critic_lam=1.0, advantage_norm=None)
    batch = pack([conversation([0, -1, 0, 0], (), reward=10.0)], algorithm_columns=algorithm.columns)
    batch = batch.with_columns(value=torch.tensor([99.0, 1.0, 99.0, 2.0, 4.0]), final_value=torch.tensor([6.0]))
    prepared = algorithm.prepare(batch)
    assert prepared["returns"].tolist() == pytest.approx([0.0, 10.0, 0.0, 10.0, 10.0])
    assert prepared["advantage"].tolist() == pytest.approx([0.0, 1 + 0.5 * (2 + 0.5 * 6), 0.0, 2 + 0.5 * 6, 6.0])


def test_a_turns_tokens_share_its_return() -> None:
    algorithm = PPO(step_level="turn", lam=1.0, advantage_norm=None)
    batch = pack([conversation([0, 0, -1, 1, 1], (2.0, 0.0), reward=10.0)], algorithm_columns=algorithm.columns)
    value_T = torch.tensor([99.0, 1.0, 99.0, 99.0, 4.0, 99.0])
    prepared = algorithm.prepare(batch.with_columns(value=value_T, final_value=torch.tensor([6.0])))
    assert prepared["returns"].tolist() == pytest.approx([0.0, 12.0, 12.0, 0.0, 10.0, 10.0])
    assert prepared["advantage"].tolist() == pytest.approx([0.0, 11.0, 11.0, 0.0, 6.0, 6.0])


def test_explained_variance_and_moments_are_of_loss_tokens() -> None:
    algorithm = PPO(lam=1.0)
    batch = pack([replace(conversation([0, -1, 0], (), reward=2.0))], algorithm_columns=algorithm.columns)
    batch = batch.with_columns(value=torch.tensor([99.0, 1.0, float("nan"), 3.0]), final_value=torch.zeros(1))
    prepared = algorithm.prepare(batch).with_columns(returns=torch.tensor([0.0, 2.0, 0.0, 4.0]))
    values = {m.name: m.value for m in algorithm.step_metrics(prepared)}
    assert values["critic/explained_variance"] == pytest.approx(1.0)
    assert (values["train/value_mean"], values["train/return_mean"]) == (2.0, 3.0)
