"""Batches of given rewards, masks and log-probs, for the tests of algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from areal_lit.batching import pack
from areal_lit.contracts.algorithm import Algorithm
from areal_lit.token_batch import TokenBatch
from areal_lit.types import Example, Group, Prompt, Trajectory


def make_batch(
    algorithm: Algorithm,
    groups: Sequence[int],
    rewards: Sequence[float | None],
    masks: Sequence[Sequence[int]] | None = None,
) -> TokenBatch:
    """One prompt token, then the masked-in or -out tokens of each sample; a reward of None is unscored."""
    masks = [[1, 1]] * len(groups) if masks is None else masks
    made = []
    for sample, (group, reward, mask) in enumerate(zip(groups, rewards, masks, strict=True)):
        prompt = Prompt(prompt_id=group, source="a", row=0, epoch=0, example=Example(prompt="x"))
        full = np.array([0, *mask], dtype=bool)
        trajectory = Trajectory(
            token_ids=np.arange(len(full)),
            loss_mask=full,
            logprobs=np.zeros(len(full), dtype=np.float32),
            versions=np.where(full, 0, -1),
            prompt=prompt,
            reward=reward,
            unscored="broken" if reward is None else "",
            sample=sample,
        )
        made.append(Group(prompt=prompt, trajectories=(trajectory,)))
    return pack(made, algorithm_columns=algorithm.columns)


def put(batch: TokenBatch, name: str, rows: Sequence[Sequence[float]]) -> TokenBatch:
    """The batch with a per-token column from one row per sample, without the prompt token."""
    column = torch.tensor([x for row in rows for x in (0.0, *row)], dtype=torch.float64)
    return replace(batch, columns={**batch.columns, name: column})
