"""A PPO step with a critic and two mini-batches: what the contracts must carry before PPO is real."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from strainer_ppo import PPO, gae

from areal_lit.batching import pack, plan_shards, shard, split_minibatches
from areal_lit.testing.algorithm import check_algorithm
from areal_lit.testing.toy import RaggedGroups, ToyModel
from areal_lit.token_batch import TokenBatch, TokenOutputs, weighted_sum
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


def test_two_minibatches_train_policy_and_critic() -> None:
    algorithm = PPO(lam=1.0, value_clip=10.0)
    batch = pack(RaggedGroups().draw(np.random.default_rng(1), num_groups=8), algorithm_columns=algorithm.columns)
    models = {"policy": ToyModel(seed=0), "critic": ToyModel(seed=1)}
    optimizers = {role: torch.optim.SGD(model.parameters(), lr=0.3) for role, model in models.items()}
    with torch.no_grad():
        start_T, critic = models["policy"](batch).logprob_T.float(), models["critic"](batch)
    prepared = algorithm.prepare(
        batch.with_columns(
            logprob=start_T, proximal=start_T, value=critic.value_T.float(), final_value=critic.final_value_S.float()
        )
    )
    for epoch in range(6):
        for minibatch in split_minibatches(prepared, 2, seed=epoch):
            weighed = algorithm.weigh(minibatch)
            assert weighed["token_weight"].sum().item() == pytest.approx(1.0)
            for role, optimizer in optimizers.items():
                accumulate(algorithm, models[role], role, weighed)
                optimizer.step()
                optimizer.zero_grad()
    mask_T = prepared["loss_mask"]
    errors = [(value_T - prepared["returns"])[mask_T].square().mean().item()
              for value_T in (prepared["value"], models["critic"](batch).value_T)]  # fmt: skip
    assert errors[1] < 0.9 * errors[0]  # random rewards leave most of it irreducible
    gain_T = prepared["advantage"] * (models["policy"](batch).logprob_T - start_T)
    assert gain_T[mask_T].mean().item() > 0


def accumulate(algorithm: PPO, model: ToyModel, role: str, weighed: TokenBatch) -> None:
    """Backward over two shards' micro-batches, each role seeing only its own outputs."""
    plan = plan_shards(weighed, num_shards=2, max_tokens=60, packing="ffd")
    for microbatch in (m for batches in shard(weighed, plan) for m in batches):
        outputs = model(microbatch)
        if role == "policy":
            seen = TokenOutputs(logprob_T=outputs.logprob_T)
        else:
            seen = TokenOutputs(value_T=outputs.value_T, final_value_S=outputs.final_value_S)
        weighted_sum(algorithm.objectives()[role](seen, microbatch), microbatch).backward()
