"""How much of the returns PPO's critic explains, beside a Monte-Carlo value of the same states.

    python benchmarks/critic.py [--prompts 512] [--continuations 64] [--set KEY=VALUE ...]

Trains the critic of quickstart_ppo alone, draws a completion for each of the data's first prompts from the policy, and
cuts it at every token. From each of these prefixes the policy goes on so many times; the mean reward is the Monte-Carlo
value. The completion itself is none of them, so its reward is an independent return of its prefixes:

    explained variance of V = 1 - var(return - V) / var(return)        over all generated tokens

Fails unless the critic explains 80% of what the Monte-Carlo value does. Transformers draws the tokens, not our engine.
Rewards of 0 and 1 are all that tells the critic which digits are right, which takes more than
a thousand steps.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from areal_lit import recipes
from areal_lit.batching import pack, plan_shards, shard, unshard
from areal_lit.text import TextCodec
from areal_lit.trainer import Trainer
from areal_lit.types import Example, FloatArray, Group, IntArray, Prompt, Trajectory
from areal_lit_single.strategy import Single

WANTED = 0.8
SETTINGS = ("data.init_args.num_eval=0", "algorithm.init_args.value_warmup_steps=1600", "max_steps=1601")
BATCH = 4096
"""Sequences that are continued at once."""


def draw(
    lm: PreTrainedModel, prefixes: Sequence[IntArray], trainer: Trainer, codec: TextCodec, *, budget: int
) -> list[IntArray]:
    """One continuation of each prefix by at most so many tokens, the end token included."""
    longest = max(map(len, prefixes))
    ids = torch.zeros(len(prefixes), longest, dtype=torch.long)
    for row, prefix in zip(ids, prefixes, strict=True):
        row[longest - len(prefix) :] = torch.from_numpy(prefix)
    read = torch.arange(longest) >= longest - torch.tensor([[len(prefix)] for prefix in prefixes])
    ends = torch.tensor(codec.end_token_ids)
    drawn = lm.generate(
        input_ids=ids, attention_mask=read.long(), do_sample=True, top_k=0, max_new_tokens=budget,
        temperature=trainer.rollout.sampling.temperature, eos_token_id=ends, pad_token_id=int(ends[0]),
    )[:, longest:]  # fmt: skip
    is_over = torch.isin(drawn, ends).cumsum(1) - torch.isin(drawn, ends).long() > 0
    return [row[~over].numpy() for row, over in zip(drawn, is_over, strict=True)]


def trajectory(prompt_ids: IntArray, completion_ids: IntArray, example: Example, codec: TextCodec) -> Trajectory:
    """A completion of a prompt as rewards and critics read it."""
    token_ids = np.concatenate([prompt_ids, completion_ids])
    is_drawn = np.arange(len(token_ids)) >= len(prompt_ids)
    return Trajectory(
        token_ids=token_ids, loss_mask=is_drawn, logprobs=np.zeros(len(token_ids), dtype=np.float32),
        versions=np.where(is_drawn, 0, -1), text=codec.decode(completion_ids), reward=0.0,
        prompt=Prompt(prompt_id=0, source="train", row=0, epoch=0, example=example),
    )  # fmt: skip


def critic_values(critic: Single, trajectories: Sequence[Trajectory]) -> list[FloatArray]:
    """The critic's value before each generated token, per trajectory."""
    batch = pack([Group(prompt=each.prompt, trajectories=(each,)) for each in trajectories])
    plan = plan_shards(batch, num_shards=1, max_tokens=16384, packing="ffd")
    (microbatches,) = shard(batch, plan)
    value_T = unshard(batch, plan, [critic.forward(microbatches, frozenset({"value"}))]).value_T
    assert value_T is not None
    parts = np.split(value_T.numpy(), batch["length"].cumsum(0)[:-1])
    return [part[each.loss_mask] for part, each in zip(parts, trajectories, strict=True)]


def explained(return_N: FloatArray, value_N: FloatArray) -> float:
    """Share of the returns' variance that the values account for."""
    return float(1 - (return_N - value_N).var() / return_N.var())


def measure(trainer: Trainer, run: Path, *, num_prompts: int, num_continuations: int) -> tuple[float, float, int]:
    """Explained variance of the critic and of the Monte-Carlo values, and over how many states."""
    assert trainer.critic is not None
    assert trainer.reward is not None
    codec, checkpoint = TextCodec(trainer.policy.model), max((run / "checkpoints").glob("step-*"))
    lm = AutoModelForCausalLM.from_pretrained(checkpoint / "hf").eval()
    critic = Single(device="cpu")
    critic.setup(trainer.critic.model, head="value")
    critic.load(checkpoint / "roles" / "critic")
    trainer.data.setup(codec)
    trainer.reward.setup()
    (source,) = trainer.data.train().values()
    examples = source.examples[:num_prompts]
    budget = trainer.rollout.sampling.max_new_tokens

    prompts = [codec.encode_prompt(example) for example in examples]
    drawn = draw(lm, prompts, trainer, codec, budget=budget)
    whole = [trajectory(*each, codec) for each in zip(prompts, drawn, examples, strict=True)]
    returns = [float(trainer.reward.score(each)) for each in whole]  # type: ignore[arg-type]
    values = critic_values(critic, whole)
    estimates = [np.zeros(len(each)) for each in drawn]
    for cut in range(budget):
        states = [index for index, each in enumerate(drawn) if len(each) > cut for _ in range(num_continuations)]
        for part in (states[start : start + BATCH] for start in range(0, len(states), BATCH)):
            begun = [drawn[index][:cut] for index in part]
            prefixes = [np.concatenate([prompts[index], begin]) for index, begin in zip(part, begun, strict=True)]
            rest = draw(lm, prefixes, trainer, codec, budget=budget - cut)
            for index, begin, end in zip(part, begun, rest, strict=True):
                done = trajectory(prompts[index], np.concatenate([begin, end]), examples[index], codec)
                estimates[index][cut] += float(trainer.reward.score(done)) / num_continuations  # type: ignore[arg-type]
    return_N = np.repeat(returns, [len(each) for each in drawn])
    value_N, estimate_N = np.concatenate(values), np.concatenate(estimates)
    return explained(return_N, value_N), explained(return_N, estimate_N), len(return_N)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--continuations", type=int, default=64)
    parser.add_argument("--set", nargs="*", default=[], help="overrides of the recipe, as key=value")
    given = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as directory:
        trainer = recipes.load("quickstart_ppo", overrides=[f"runs_dir={directory}", *SETTINGS, *given.set])
        run = trainer.fit()
        critic, monte_carlo, num_states = measure(
            trainer, run, num_prompts=given.prompts, num_continuations=given.continuations
        )
    print(f"{num_states} states: critic {critic:.3f}, Monte-Carlo {monte_carlo:.3f}, ratio {critic / monte_carlo:.2f}")
    if critic < WANTED * monte_carlo:
        raise SystemExit(f"the critic explains less than {WANTED:.0%} of what the Monte-Carlo values do")


if __name__ == "__main__":
    main()
