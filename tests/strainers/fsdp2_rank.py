"""A rank that shards a small model with FSDP2, as the launcher `local` starts it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from areal_lit.types import TensorInfo


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(19, 12), nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 19, bias=False))


def loss_of(model, tokens):
    return nn.functional.cross_entropy(model(tokens), tokens.roll(1), reduction="sum")


class ShardedRank:
    def __init__(self, rank):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        dist.init_process_group("gloo", rank=rank.rank, world_size=rank.num_ranks)
        self.rank = rank
        self.model = small_model()
        mesh = init_device_mesh("cpu", (rank.num_ranks,))
        for layer in (self.model[1], self.model[3]):
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def close(self):
        dist.destroy_process_group()

    def step(self, tokens, num_tokens):
        """One optimizer step on this rank's share; the gradient is the sum over ranks, divided by all tokens."""
        loss = loss_of(self.model, tokens) * self.rank.num_ranks / num_tokens  # FSDP averages over ranks
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def manifest(self):
        return tuple(
            TensorInfo(name=name, shape=tuple(p.shape), dtype=str(p.dtype).removeprefix("torch."))
            for name, p in self.model.named_parameters()
        )

    def weights(self):
        for name, parameter in self.model.named_parameters():
            yield [(name, parameter.full_tensor())]

    def gathered(self):
        return {name: tensor for bucket in self.weights() for name, tensor in bucket}

    def send(self, transport, source):
        transport.send(source, self.weights(), self.rank)
