"""PPO's maths on the contracts: conformance, advantages by hand, returns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from strainer_ppo import PPO, gae

from areal_lit.batching import pack
from areal_lit.testing.algorithm import check_algorithm
from areal_lit.token_batch import TokenBatch
from areal_lit.types import Example, Group, Prompt, Trajectory


def test_conformance() -> None:
    check_algorithm(PPO())
    check_algorithm(PPO(gamma=0.9, lam=0.8, decoupled=False, aggregation="sequence_mean"))


def one_sequence(*, stop_reason: str) -> TokenBatch:
    """A prompt token, a generated one, a tool token, two generated ones; reward 10."""
    prompt = Prompt(prompt_id=0, source="a", row=0, epoch=0, example=Example(prompt="x"))
    trajectory = Trajectory(
        token_ids=np.arange(5),
        loss_mask=np.array([0, 1, 0, 1, 1], dtype=bool),
        logprobs=np.zeros(5, dtype=np.float32),
        versions=np.array([-1, 0, -1, 0, 0]),
        prompt=prompt,
        reward=10.0,
        stop_reason=stop_reason,  # type: ignore[arg-type]
    )
    batch = pack([Group(prompt=prompt, trajectories=(trajectory,))], algorithm_columns=PPO().columns)
    return batch.with_columns(value=torch.tensor([99.0, 1.0, 99.0, 2.0, 4.0]), final_value=torch.tensor([6.0]))


@pytest.mark.parametrize(("stop_reason", "after"), [("stop", 0.0), ("length", 6.0)])
def test_only_a_truncated_sequence_bootstraps(stop_reason: str, after: float) -> None:
    last = 10 + 0.5 * after - 4
    middle = 0.5 * 4 - 2 + 0.5 * 0.8 * last
    first = 0.5 * 2 - 1 + 0.5 * 0.8 * middle
    advantages = gae(one_sequence(stop_reason=stop_reason), gamma=0.5, lam=0.8)
    assert advantages.tolist() == pytest.approx([0.0, first, 0.0, middle, last])


def test_returns_are_advantage_plus_value() -> None:
    prepared = PPO(lam=1.0).prepare(one_sequence(stop_reason="stop"))
    assert prepared["returns"].tolist() == pytest.approx([0.0, 10.0, 0.0, 10.0, 10.0])
