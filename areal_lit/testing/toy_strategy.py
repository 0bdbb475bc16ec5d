"""The toy model on any number of ranks: what an algorithm meets there, without a real model's cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from areal_lit.contracts.optimizer import Optimizer
from areal_lit.contracts.strategy import Bucket, Head, Output, Rank, Strategy
from areal_lit.testing.toy import ToyModel, visible
from areal_lit.token_batch import Divergence, Objective, TokenBatch, TokenOutputs, weighted_sum
from areal_lit.types import Metric, ModelSpec, TensorInfo

TIMEOUT = timedelta(seconds=60)
FILE = "toy.pt"


class ToyStrategy(Strategy):
    """The same float64 toy model on every rank, whose gradients gloo adds up. ``init_seed`` is its seed."""

    def setup(
        self,
        spec: ModelSpec,
        *,
        head: Head = "lm",
        optimizer: Optimizer | None = None,
        num_steps: int | None = None,
        rank: Rank = Rank(),  # noqa: B008 - frozen
    ) -> None:
        if not dist.is_initialized():
            dist.init_process_group("gloo", rank=rank.rank, world_size=rank.num_ranks, timeout=TIMEOUT)
        self._rank, self._head = rank, head
        self._model = ToyModel(seed=spec.init_seed)
        self._optimizer = None if optimizer is None else optimizer.build(self._model.parameters())

    def forward(self, microbatches: Sequence[TokenBatch], outputs: frozenset[Output]) -> list[TokenOutputs]:
        with torch.no_grad():
            return [visible(self._model(batch), self._head, outputs) for batch in microbatches]

    def optimizer_step(
        self, microbatches: Sequence[TokenBatch], objective: Objective, outputs: frozenset[Output]
    ) -> list[Metric]:
        assert self._optimizer is not None
        self._optimizer.zero_grad()
        metrics: list[Metric] = []
        for batch in microbatches:
            loss = objective(visible(self._model(batch), self._head, outputs), batch)
            total = weighted_sum(loss, batch)
            if total.requires_grad:
                total.backward()  # type: ignore[no-untyped-call]
            metrics += [*loss.metrics, Metric(name="loss", sum=float(total.detach()), reduction="sum")]
        for parameter in self._model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
        self._optimizer.step()
        return metrics

    def compare_with(self, teacher: Strategy, divergence: Divergence) -> None:
        assert isinstance(teacher, ToyStrategy)
        self._model.compare_with(teacher._model, divergence)

    def end_step(self) -> None:
        """The learning rate is constant."""

    def weights(self, kind: Literal["full", "adapter"] = "full") -> Iterator[Bucket]:
        yield [(name, parameter.detach()) for name, parameter in self._model.named_parameters()]

    def manifest(self) -> tuple[TensorInfo, ...]:
        return tuple(TensorInfo.of(*named) for bucket in self.weights() for named in bucket)

    def save(self, directory: Path) -> None:
        if self._rank.rank == 0:
            torch.save(self._model.state_dict(), directory / FILE)

    def load(self, directory: Path) -> None:
        self._model.load_state_dict(torch.load(directory / FILE, weights_only=True))

    def export_hf(self, directory: Path) -> None:
        raise NotImplementedError("a toy model is no Hugging Face model")
