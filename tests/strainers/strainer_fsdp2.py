"""FSDP2 on the contracts, thin: one float32 model sharded over CPU ranks by ``fully_shard`` and gloo.

Shapes: T packed tokens, S segments, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as checkpointing
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from areal_lit.contracts.optimizer import Optimizer
from areal_lit.contracts.strategy import Bucket, Head, Output, Rank, Strategy
from areal_lit.models import load_causal_lm, load_tokenizer
from areal_lit.token_batch import Objective, TokenBatch, TokenOutputs, weighted_sum
from areal_lit.types import Metric, ModelSpec, TensorInfo

FULL = checkpointing.StateDictOptions(full_state_dict=True, cpu_offload=True)
TIMEOUT = timedelta(seconds=60)


class Packed(nn.Module):
    """Outputs of a causal LM for a packed batch: positions that restart keep segments apart."""

    def __init__(self, lm: nn.Module, scalar_head: nn.Linear | None) -> None:
        super().__init__()
        self.lm = lm
        self.scalar_head = scalar_head

    def forward(self, batch: TokenBatch, outputs: Collection[Output]) -> TokenOutputs:
        is_first_T = batch["position"] == 0
        inputs = {"input_ids": batch["token"][None], "position_ids": batch["position"][None]}
        hidden_TD = self.lm.base_model(**inputs, use_cache=False).last_hidden_state[0]
        if self.scalar_head is not None:
            after_T = self.scalar_head(hidden_TD)[:, 0]
            return TokenOutputs(
                value_T=after_T.roll(1).masked_fill(is_first_T, 0.0),
                final_value_S=after_T[batch["length"].cumsum(0) - 1],
            )
        before_TV = self.lm.get_output_embeddings()(hidden_TD.roll(1, 0))
        logp_TV = (before_TV / batch.to_tokens(batch["temperature"])[:, None]).log_softmax(-1)
        logprob_T = logp_TV.gather(1, batch["token"][:, None])[:, 0].masked_fill(is_first_T, 0.0)
        entropy_T = -(logp_TV.exp() * logp_TV).sum(-1).masked_fill(is_first_T, 0.0)
        return TokenOutputs(logprob_T=logprob_T, entropy_T=entropy_T if "entropy" in outputs else None)


class FSDP2(Strategy):
    """Parameters, gradients and optimizer state in shards; every rank works on a data shard of its own."""

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
        self._spec, self._rank, self._config, self._num_steps = spec, rank, optimizer, num_steps
        lm = load_causal_lm(spec).requires_grad_(optimizer is not None)
        scalar_head = None if head == "lm" else nn.Linear(lm.config.hidden_size, 1)
        self._model = Packed(lm, scalar_head)
        mesh = dist.init_device_mesh("cpu", (rank.num_ranks,))
        for layer in lm.base_model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self._model, mesh=mesh)
        self._training_step = self._num_skipped = 0
        self._optimizer = optimizer and optimizer.build(self._model.parameters())

    def forward(self, microbatches: Sequence[TokenBatch], outputs: frozenset[Output]) -> list[TokenOutputs]:
        with torch.no_grad():
            return [self._model(batch, outputs) for batch in microbatches]

    def optimizer_step(
        self, microbatches: Sequence[TokenBatch], objective: Objective, outputs: frozenset[Output]
    ) -> list[Metric]:
        metrics: list[Metric] = []
        for batch in microbatches:
            loss = objective(self._model(batch, outputs), batch)
            total = weighted_sum(loss, batch)
            (total * self._rank.num_ranks).backward()  # the contract's sum over ranks, of which FSDP takes the mean
            metrics += [*loss.metrics, Metric(name="loss", sum=float(total.detach()), reduction="sum")]
        return [*metrics, *self._step()]

    def _step(self) -> list[Metric]:
        config, parameters = self._config, list(self._model.parameters())
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]).full_tensor()
        lr, is_finite = config.lr_at(self._training_step, self._num_steps), bool(norm.isfinite())
        self._num_skipped = 0 if is_finite else self._num_skipped + 1
        if self._num_skipped > config.max_skipped_steps:
            raise FloatingPointError(f"{self._num_skipped} steps in a row had non-finite gradients")
        if is_finite:
            if config.max_grad_norm:
                torch.nn.utils.clip_grads_with_norm_(parameters, config.max_grad_norm, norm)
            if self.on_before_optimizer_step is not None:
                self.on_before_optimizer_step(self._model)
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            self._optimizer.step()
        self._optimizer.zero_grad()
        return [
            Metric(name="grad_norm", sum=float(norm) if is_finite else 0.0, count=float(is_finite)),
            Metric(name="lr", sum=lr, reduction="max"),
            Metric(name="skipped_steps", sum=float(not is_finite), reduction="sum"),
        ]

    def end_step(self) -> None:
        self._training_step += 1

    def weights(self, kind: Literal["full", "adapter"] = "full") -> Iterator[Bucket]:
        """A bucket per tensor: no rank ever holds more than one in full."""
        for name, parameter in self._named():
            yield [(name, whole(parameter))]

    def manifest(self) -> tuple[TensorInfo, ...]:
        return tuple(TensorInfo.of(*named) for named in self._named())

    def _named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Every parameter once (``named_parameters`` leaves out a tied one's second name), as Hugging Face names it."""
        for name, parameter in self._model.named_parameters():
            yield name.removeprefix("lm.").replace("scalar_head", "score"), parameter

    def _state(self) -> Mapping[str, Any]:
        """Whole tensors on rank 0, which any number of ranks can take their shards from."""
        state = {
            "model": checkpointing.get_model_state_dict(self._model, options=FULL),
            "training_step": self._training_step,
            "num_skipped": self._num_skipped,
        }
        if self._optimizer is not None:
            state["optimizer"] = checkpointing.get_optimizer_state_dict(self._model, self._optimizer, options=FULL)
        return state

    def _take_back(self, state: Mapping[str, Any]) -> None:
        checkpointing.set_model_state_dict(self._model, state["model"], options=FULL)
        if self._optimizer is not None:
            checkpointing.set_optimizer_state_dict(self._model, self._optimizer, state["optimizer"], options=FULL)
        self._training_step, self._num_skipped = state["training_step"], state["num_skipped"]

    def save(self, directory: Path) -> None:
        self._on_rank_0(lambda state: torch.save(state, directory / "whole.pt"), self._state())

    def load(self, directory: Path) -> None:
        self._take_back(torch.load(directory / "whole.pt", weights_only=True))

    def export_hf(self, directory: Path) -> None:
        def write(weights: Mapping[str, Tensor]) -> None:
            model = load_causal_lm(self._spec)
            model.load_state_dict(weights, strict=False)  # a tied weight comes under one of its names
            model.save_pretrained(directory)
            load_tokenizer(self._spec).save_pretrained(directory)

        self._on_rank_0(write, dict(pair for bucket in self.weights() for pair in bucket))

    def _on_rank_0(self, write: Callable[[Any], object], value: Any) -> None:
        if self._rank.rank == 0:
            write(value)
        dist.barrier()


def whole(tensor: Tensor) -> Tensor:
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()
