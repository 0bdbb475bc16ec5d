"""A deterministic ``fit`` is a plain synchronous loop: the same tokens, log-probs, rewards and weights, bit for bit.

The loop is written out below with public pieces only: no method of a Trainer, no rollout thread, no roles, no hooks.
Sampling, advantages, the loss, the optimizer and its schedule (warm-up and decay) are all in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from acting_callbacks import Recorder
from safetensors.torch import load_file

from areal_lit import recipes
from areal_lit.batching import pack, plan_shards, shard, split_minibatches
from areal_lit.contracts import InferenceBackend, Rank
from areal_lit.logs import Logs
from areal_lit.prompts import PromptStream
from areal_lit.seeds import stable_seed
from areal_lit.text import TextCodec
from areal_lit.token_batch import TokenBatch
from areal_lit.trainer import Trainer
from areal_lit.types import Completion, GenerateRequest, Group, Prompt, Trajectory

NUM_STEPS = 50
COLUMNS = ("token", "logprob", "loss_mask", "version", "reward", "group", "sample", "truncated", "advantage")


def trainer(directory: Path, recipe: str = "quickstart_inline") -> Trainer:
    return recipes.load(
        recipe,
        overrides=[
            f"runs_dir={directory}", f"max_steps={NUM_STEPS}", "deterministic=true", "seed=3", "num_minibatches=2",
            "rollout.groups_per_step=4", "rollout.samples_per_group=4",
            "rollout.max_staleness=0", "data.init_args.num_eval=0", "loggers=[]",
            "policy.num_threads=1", "inference.init_args.num_threads=1",
        ],
    )  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[TokenBatch], dict[str, torch.Tensor]]:
    """What the loop below trains on, step by step, and the weights it ends with."""
    directory = tmp_path_factory.mktemp("plain")
    return asyncio.run(plain_loop(trainer(directory), directory))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["quickstart_inline", "quickstart"])
def test_a_deterministic_fit_is_a_plain_loop(
    tmp_path: Path, recipe: str, plain: tuple[list[TokenBatch], dict[str, torch.Tensor]]
) -> None:
    """In one process as well as with ranks and an engine in processes of their own."""
    fit, recorder = trainer(tmp_path, recipe), Recorder()
    fit.callbacks = [recorder]
    run = fit.fit()
    batches, weights = plain
    assert len(recorder.batches) == len(batches) == NUM_STEPS
    for ours, theirs in zip(recorder.batches, batches, strict=True):
        for name in COLUMNS:
            assert torch.equal(ours[name], theirs[name]), name
    assert len({batch["token"].tolist().__repr__() for batch in batches}) == NUM_STEPS
    assert any(len(batch["reward"].unique()) > 1 for batch in batches)
    (export,) = run.glob(f"checkpoints/*{NUM_STEPS}/hf/model.safetensors")
    exported = load_file(export)
    assert exported.keys() == weights.keys()
    for name, tensor in exported.items():
        assert torch.equal(tensor, weights[name]), name


async def plain_loop(recipe: Trainer, directory: Path) -> tuple[list[TokenBatch], dict[str, torch.Tensor]]:
    """The batch of every step, and the final weights."""
    engine, launcher = recipe.inference, recipe.launcher
    assert engine is not None
    launcher.setup(directory, lambda death: None, Logs())
    try:
        specs = engine.processes(recipe.policy.model, seed=recipe.seed, deterministic=True)
        await engine.connect([launcher.start_process(spec) for spec in specs])
        return await steps(recipe, engine, directory)
    finally:
        await engine.close()
        launcher.stop()


async def steps(
    recipe: Trainer, engine: InferenceBackend, directory: Path
) -> tuple[list[TokenBatch], dict[str, torch.Tensor]]:
    algorithm, settings, strategy = recipe.algorithm, recipe.rollout, recipe.policy.strategy
    codec = TextCodec(recipe.policy.model)
    strategy.setup(recipe.policy.model, optimizer=recipe.policy.optimizer, num_steps=NUM_STEPS)
    recipe.data.setup(codec)
    stream = PromptStream(recipe.data.train(), seed=recipe.seed)
    batches = []
    for step in range(NUM_STEPS):
        await hand_over(recipe, engine, step, directory)
        prompts = [prompt for _ in range(settings.groups_per_step) if (prompt := stream.next())]
        groups = await asyncio.gather(*(roll_out(recipe, engine, codec, prompt) for prompt in prompts))
        batch = pack(groups, algorithm_columns=algorithm.columns, source_names=stream.source_names)
        batch = algorithm.prepare(batch.with_scalars(step=float(step)))
        for minibatch in split_minibatches(batch, recipe.num_minibatches, seed=recipe.seed + step):
            weighed = algorithm.weigh(minibatch)
            plan = plan_shards(
                weighed, num_shards=1, max_tokens=strategy.max_tokens_per_microbatch, packing=strategy.packing
            )
            strategy.optimizer_step(shard(weighed, plan)[0], algorithm.objectives()["policy"], frozenset({"logprob"}))
        strategy.end_step()
        batches.append(batch)
    return batches, {name: tensor for bucket in strategy.weights() for name, tensor in bucket}


async def hand_over(recipe: Trainer, engine: InferenceBackend, version: int, directory: Path) -> None:
    """Give the engine the strategy's weights."""
    assert recipe.transport is not None
    manifest = recipe.policy.strategy.manifest()
    source = recipe.transport.plan(version, manifest, num_receivers=1, directory=str(directory))
    recipe.transport.send(source, recipe.policy.strategy.weights(), Rank())
    await engine.pause("drain")
    await engine.update_weights(source)
    await engine.resume()
    recipe.transport.finish(source)


async def roll_out(recipe: Trainer, engine: InferenceBackend, codec: TextCodec, prompt: Prompt) -> Group:
    """One prompt's samples, scored."""
    start = codec.encode_prompt(prompt.example)
    samples = range(recipe.rollout.samples_per_group)
    requests = [
        GenerateRequest(
            request_id=f"{prompt.prompt_id}.{sample}",
            token_ids=start,
            sampling=recipe.rollout.sampling,
            seed=stable_seed(stable_seed(recipe.seed, "train", prompt.prompt_id, sample), 0),
        )
        for sample in samples
    ]
    completions = await asyncio.gather(*(engine.generate(request) for request in requests))
    return Group(prompt=prompt, trajectories=score(recipe, codec, prompt, start, completions))


def score(
    recipe: Trainer, codec: TextCodec, prompt: Prompt, start: np.ndarray, completions: Sequence[Completion]
) -> tuple[Trajectory, ...]:
    assert recipe.reward is not None
    scored = []
    for sample, completion in enumerate(completions):
        before = np.zeros(len(start))
        trajectory = Trajectory(
            token_ids=np.concatenate([start, completion.token_ids]),
            loss_mask=np.concatenate([before, np.ones(len(completion.token_ids))]).astype(bool),
            logprobs=np.concatenate([before, completion.logprobs]).astype(np.float32),
            versions=np.concatenate([before - 1, completion.versions]).astype(np.int64),
            prompt=prompt,
            text=codec.decode(completion.token_ids),
            stop_reason=completion.stop_reason,
            sample=sample,
        )
        value = recipe.reward.score(trajectory)
        assert isinstance(value, float)
        scored.append(replace(trajectory, reward=value))
    return tuple(scored)
