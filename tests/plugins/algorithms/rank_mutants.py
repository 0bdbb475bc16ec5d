"""Algorithms that are right on one process and wrong on several; a module of their own, which ranks can import."""

from __future__ import annotations

from dataclasses import replace

import torch.distributed as dist

from areal_lit.token_batch import Loss, TokenBatch, TokenOutputs
from areal_lit_algorithms.grpo import GRPO


def num_ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


class RankMean(GRPO):
    """Takes the mean over ranks, as code written for DDP does."""

    def policy_objective(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        loss = super().policy_objective(outputs, batch)
        return replace(loss, values=loss.values / num_ranks())


class OwnShare(GRPO):
    """Centres advantages on those of the rank's own tokens, once there are several ranks."""

    def policy_objective(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        if num_ranks() > 1:
            batch = batch.with_columns(advantage=batch["advantage"] - batch["advantage"].mean())
        return super().policy_objective(outputs, batch)
