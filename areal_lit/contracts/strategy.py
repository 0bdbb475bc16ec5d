"""Strategy: how one model lives on n ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from areal_lit.contracts.component import Component
from areal_lit.token_batch import Divergence, Objective, TokenBatch, TokenOutputs, weighted_sum
from areal_lit.types import Metric, ModelSpec, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.contracts.optimizer import Optimizer

Head = Literal["lm", "value", "score"]
Output = Literal["logprob", "entropy", "value", "topk", "divergence"]
"""What a strategy may be asked for.

``topk``: log-probs of the tokens in the batch's column ``topk_token``; without that column the likeliest tokens and
theirs, as many as the scalar ``topk`` says. ``divergence``: what ``compare_with`` was told to add up.
"""
Bucket = Sequence[tuple[str, "Tensor"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """This process's place in its worker group; ``MASTER_ADDR``/``MASTER_PORT`` stand in the environment."""

    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0


class Snapshot(ABC):
    """A copy of a strategy's state, to be written while training goes on.

    Its methods run on another thread than the training: they touch no device, no collective and no random state.
    """

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Write what ``Strategy.save`` writes."""

    @abstractmethod
    def export_hf(self, directory: Path) -> None:
        """Write what ``Strategy.export_hf`` writes."""


class Strategy(Component):
    """How one model lives on n ranks. All methods but ``rules`` and the properties run on ranks.

    Micro-batches are planned by the core for all ranks at once (equal counts, zero-weight fill), from
    ``max_tokens_per_microbatch`` and ``packing``; a strategy only runs them.

    Args:
        max_tokens_per_microbatch: token budget of a micro-batch on one data shard.
        packing: ``ffd`` (first-fit-decreasing: fewest micro-batches) or ``kk`` (largest differencing: most equal).
    """

    offers: ClassVar[frozenset[Output]] = frozenset({"logprob", "entropy", "value"})
    """What it can be asked for. Without ``topk`` and ``divergence`` it distils sampled tokens only."""

    needs_one_rank: ClassVar[bool] = False
    """True: refuses more ranks than one."""

    on_before_optimizer_step: Callable[[Any], None] | None = None
    """Set by the worker: called with the torch module after clipping, before the optimizer moves."""

    def __init__(self, *, max_tokens_per_microbatch: int = 16384, packing: Literal["ffd", "kk"] = "ffd") -> None:
        if max_tokens_per_microbatch < 1:
            raise ValueError(f"max_tokens_per_microbatch must be >= 1, got {max_tokens_per_microbatch}")
        self.max_tokens_per_microbatch = max_tokens_per_microbatch
        self.packing = packing

    def data_shards(self, num_ranks: int) -> Sequence[int]:
        """The data shard each rank works on; ranks of one tensor- or pipeline-parallel group share theirs."""
        return range(num_ranks)

    @abstractmethod
    def setup(
        self,
        spec: ModelSpec,
        *,
        head: Head = "lm",
        optimizer: Optimizer | None = None,
        num_steps: int | None = None,
        rank: Rank = Rank(),
    ) -> None:
        """Load the model onto this rank. With an optimizer it is trainable; without, frozen and in eval mode.

        Args:
            num_steps: training steps of the run, for schedules that decay; None if open-ended.
        """

    @abstractmethod
    def forward(self, microbatches: Sequence[TokenBatch], outputs: frozenset[Output]) -> list[TokenOutputs]:
        """Outputs per micro-batch, without gradient, on the CPU. Empty outputs are None."""

    @abstractmethod
    def optimizer_step(
        self, microbatches: Sequence[TokenBatch], objective: Objective, outputs: frozenset[Output]
    ) -> list[Metric]:
        """Backward of the weighted sum over all micro-batches of all ranks, clip, step.

        Returns the objective's metrics and ``loss`` (sum), each this data shard's share; and ``grad_norm``, ``lr`` and
        ``skipped_steps`` of the whole step, the same on every rank.
        Non-finite gradients skip the step; past the optimizer's limit of them in a row, FloatingPointError.
        """

    @abstractmethod
    def end_step(self) -> None:
        """The training step is over: advance the learning-rate schedule."""

    @abstractmethod
    def weights(self, kind: Literal["full", "adapter"] = "full") -> Iterator[Bucket]:
        """Buckets of (Hugging Face name, tensor) in the served dtype; every rank yields the same buckets.

        Tied weights once, vocabulary padding stripped. Tensors may alias parameters: consume before stepping.
        """

    @abstractmethod
    def manifest(self) -> tuple[TensorInfo, ...]:
        """Names, shapes and dtypes of what ``weights`` yields, in order, without moving a tensor."""

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Write weights, optimizer and schedule below ``directory`` (exists, empty).

        Called on every rank; each writes its part. A strategy has no ``state_dict``: what it holds is no JSON, and
        never passes through the controller. The random states of Python, numpy and torch are the worker's. OSError
        where the disk is full, so that the run can say so.
        """

    @abstractmethod
    def load(self, directory: Path) -> None:
        """Read what ``save`` wrote, also on another number of ranks, with ``weights_only`` loading. On every rank."""

    @abstractmethod
    def export_hf(self, directory: Path) -> None:
        """Write a model that ``AutoModelForCausalLM.from_pretrained`` loads, tokenizer included.

        A value or score head goes into ``areal_lit.models.SCALAR_HEAD_FILE`` beside it.
        """

    def saved_bytes(self, *, has_export: bool) -> int | None:
        """About what ``save`` writes on this rank, with what ``export_hf`` writes if there is an export.

        Told when the disk is full; None, the default, where it is not known.
        """
        return None

    def prepare_snapshot(self) -> None:
        """Begin to get the memory of a snapshot ready, without waiting: the first one then takes no longer than others.

        Called after the first step of a run that saves while it trains.
        """

    def snapshot(self) -> Snapshot | None:
        """A copy of what ``save`` and ``export_hf`` write. On every rank; the last one has been written by then.

        None, the default: ranks write with ``save`` and ``export_hf`` themselves, before they take the next step.
        """
        return None

    def evaluate(
        self, microbatches: Sequence[TokenBatch], objective: Objective, outputs: frozenset[Output]
    ) -> list[Metric]:
        """The objective's metrics and ``loss`` without gradient."""
        metrics = []
        for batch, out in zip(microbatches, self.forward(microbatches, outputs), strict=True):
            loss = objective(out, batch)
            metrics += [*loss.metrics, Metric(name="loss", sum=float(weighted_sum(loss, batch)), reduction="sum")]
        return metrics

    def compare_with(self, teacher: Strategy, divergence: Divergence) -> None:
        """From now on the output ``divergence`` is the sum of ``divergence`` over the whole vocabulary, [T].

        Computed in blocks of it: nothing of size [T, V] exists, and the teacher's states stay on the rank. The gradient
        is that of this role's logits alone.

        Args:
            teacher: a frozen role on the same ranks, of the same vocabulary.
        """
        raise NotImplementedError(f"{type(self).__name__} does not offer the output divergence")

    def copy_from(self, other: Strategy, *, decay: float = 0.0) -> None:
        """Take the weights of another role on the same ranks (a refreshed reference); on every rank.

        What it holds then, ``decay`` x own + (1 - ``decay``) x other, is accumulated in float32 whatever the weights'
        dtype, and is part of ``save``. A scalar head stays as it is.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot copy weights between roles")
