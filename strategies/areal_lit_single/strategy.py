"""Single: one model on one process, on a CPU or one GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from areal_lit.contracts.strategy import Bucket, Head, Output, Rank, Snapshot, Strategy
from areal_lit.models import LATE_IMPORTS, SCALAR_HEAD_PREFIX
from areal_lit.token_batch import Divergence, Objective, TokenBatch, TokenOutputs, weighted_sum
from areal_lit.types import Metric, ModelSpec, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.contracts.optimizer import Optimizer
    from areal_lit_single.network import Network
    from areal_lit_single.snapshot import HostCopies
    from areal_lit_single.trainable import Trainable

BUCKET_BYTES = 256 * 2**20


class Single(Strategy):
    """One model on one process, on a CPU or one GPU; any Hugging Face causal language model.

    Dropout is off. bfloat16 models have float32 master weights and accumulate gradients in float32.

    Args:
        max_tokens_per_microbatch: token budget of a micro-batch.
        packing: ``ffd`` (first-fit-decreasing: fewest micro-batches) or ``kk`` (largest differencing: most equal).
        device: ``cpu``, ``cuda``, or ``auto``: cuda where there is one.
        attention: ``packed`` (one SDPA call per run of equally long sequences), ``varlen`` (flash attention, needs
            CUDA and bfloat16), ``padded`` (the model's own attention on a padded batch), or ``auto``: the first of
            ``varlen``, ``packed`` and ``padded`` that can run and agrees with the model on single sequences.
        gradient_checkpointing: keep only each layer's input for backward and compute the rest again.
        freeze: glob patterns of parameter names that are not trained (``model.embed_tokens.*``).
    """

    offers: ClassVar[frozenset[Output]] = frozenset({"logprob", "entropy", "value", "topk", "divergence"})
    needs_one_rank: ClassVar[bool] = True
    preload = ("areal_lit_single.building", "areal_lit_single.trainable", *LATE_IMPORTS)

    def __init__(
        self,
        *,
        max_tokens_per_microbatch: int = 16384,
        packing: Literal["ffd", "kk"] = "ffd",
        device: Literal["auto", "cpu", "cuda"] = "auto",
        attention: Literal["auto", "packed", "varlen", "padded"] = "auto",
        gradient_checkpointing: bool = False,
        freeze: Sequence[str] = (),
    ) -> None:
        super().__init__(max_tokens_per_microbatch=max_tokens_per_microbatch, packing=packing)
        self.device = device
        self.attention = attention
        self.gradient_checkpointing = gradient_checkpointing
        self.freeze = freeze
        self._spec: ModelSpec
        self._network: Network
        self._trainable: Trainable | None = None
        self._copies: HostCopies | None = None
        self._averages: dict[str, Tensor] = {}

    @property
    def network(self) -> Network:
        """The torch module; available after ``setup``."""
        return self._network

    def setup(
        self,
        spec: ModelSpec,
        *,
        head: Head = "lm",
        optimizer: Optimizer | None = None,
        num_steps: int | None = None,
        rank: Rank = Rank(),  # noqa: B008 - frozen
    ) -> None:
        from areal_lit_single.building import build_network, checkpoint_layers, trained_parameters
        from areal_lit_single.trainable import Trainable

        if rank.num_ranks != 1:
            raise ValueError(
                f"strategy single runs on 1 rank, got {rank.num_ranks}; set num_ranks to 1 or choose another strategy"
            )
        self._spec = spec
        self._network = build_network(
            spec, head=head, device=self.device, attention=self.attention, local_rank=rank.local_rank
        )
        named = trained_parameters(self._network, freeze=self.freeze if optimizer else ["*"])
        if optimizer is None:
            return
        self._trainable = Trainable(named, optimizer, num_steps)
        if self.gradient_checkpointing:
            checkpoint_layers(self._network.lm)

    def forward(self, microbatches: Sequence[TokenBatch], outputs: frozenset[Output]) -> list[TokenOutputs]:
        """Outputs per micro-batch, without gradient, on the CPU; log-probs and entropies at loss tokens only."""
        import torch

        with torch.no_grad():
            return [_on_cpu(self._network(batch, outputs)) for batch in microbatches]

    def optimizer_step(
        self, microbatches: Sequence[TokenBatch], objective: Objective, outputs: frozenset[Output]
    ) -> list[Metric]:
        trainable = self._require_trainable()
        trainable.zero_grad()
        metrics: list[Metric] = []
        losses = []
        for batch in microbatches:
            loss = objective(self._network(batch, outputs), there := batch.to(self._network.device))
            total = weighted_sum(loss, there)
            if total.requires_grad:
                total.backward()
            losses.append(total.detach())
            metrics += loss.metrics
        metrics.append(Metric(name="loss", sum=sum(float(x) for x in losses), reduction="sum"))
        hook = self.on_before_optimizer_step
        grad_norm, was_taken = trainable.step(None if hook is None else lambda: hook(self._network))
        trainable.zero_grad()
        return [
            *metrics,
            Metric(name="grad_norm", sum=grad_norm if was_taken else 0.0, count=float(was_taken)),
            Metric(name="lr", sum=trainable.lr, reduction="max"),
            Metric(name="skipped_steps", sum=0.0 if was_taken else 1.0, reduction="sum"),
        ]

    def end_step(self) -> None:
        self._require_trainable().training_step += 1

    def _require_trainable(self) -> Trainable:
        if self._trainable is None:
            raise RuntimeError("this role is frozen: setup got no optimizer, so it cannot be trained")
        return self._trainable

    # --- weights ------------------------------------------------------------------------------------------------

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight once under its Hugging Face name; a scalar head as ``score.weight``."""
        seen: set[int] = set()
        for name, tensor in self._network.lm.state_dict(keep_vars=True).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield name, tensor.detach()
        if self._network.scalar_head is not None:
            for name, tensor in self._network.scalar_head.state_dict().items():
                yield f"{SCALAR_HEAD_PREFIX}{name}", tensor

    def weights(self, kind: Literal["full", "adapter"] = "full") -> Iterator[Bucket]:
        if kind != "full":
            raise ValueError(f"strategy single trains no adapters, so weights(kind={kind!r}) has none; use 'full'")
        bucket: list[tuple[str, Tensor]] = []
        size_bytes = 0
        for name, tensor in self._tensors():
            bucket.append((name, tensor))
            size_bytes += tensor.nbytes
            if size_bytes >= BUCKET_BYTES:
                yield bucket
                bucket, size_bytes = [], 0
        if bucket:
            yield bucket

    def manifest(self) -> tuple[TensorInfo, ...]:
        return tuple(TensorInfo.of(*named) for named in self._tensors())

    def compare_with(self, teacher: Strategy, divergence: Divergence) -> None:
        if not isinstance(teacher, Single):
            raise ValueError(f"strategy single compares with a teacher of its own kind, got {type(teacher).__name__}")
        self._network.compare_with(teacher.network, divergence)

    def copy_from(self, other: Strategy, *, decay: float = 0.0) -> None:
        import torch

        source = {name: tensor for bucket in other.weights() for name, tensor in bucket}
        own = {name: tensor for name, tensor in self._tensors() if not name.startswith(SCALAR_HEAD_PREFIX)}
        if missing := own.keys() - source.keys():
            raise ValueError(
                f"cannot copy weights between roles: the source lacks {sorted(missing)[:3]}; use one model"
            )
        with torch.no_grad():
            for name, tensor in own.items():
                if decay and tensor.dtype != torch.float32:
                    self._averages.setdefault(name, tensor.float())
                average = self._averages.get(name, tensor)
                average.lerp_(source[name].to(average), 1 - decay)
                if average is not tensor:
                    tensor.copy_(average)
        if self._trainable is not None:
            self._trainable.follow()

    # --- state --------------------------------------------------------------------------------------------------

    def _state(self) -> Mapping[str, Any]:
        """Weights once each, what they are the rounded average of, and if trained: masters, optimizer and schedule."""
        state: dict[str, Any] = {"weights": dict(self._tensors()), "averages": self._averages}
        if self._trainable is not None:
            state["trainable"] = self._trainable.state_dict()
        return state

    def _take_back(self, state: Mapping[str, Any]) -> None:
        import torch

        own = dict(self._tensors())
        if own.keys() != state["weights"].keys():
            raise ValueError(
                f"the checkpoint holds other weights than this model (only in one of them: "
                f"{sorted(own.keys() ^ state['weights'].keys())[:3]}); resume with the model and head it was saved with"
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state["weights"][name])
        self._averages = dict(state.get("averages", {}))
        if self._trainable is not None:
            if "trainable" not in state:
                raise ValueError("the checkpoint is of a frozen role and has no optimizer state to train on with")
            self._trainable.load_state_dict(state["trainable"])

    def save(self, directory: Path) -> None:
        from areal_lit_single.snapshot import write_state

        write_state(self._state(), directory)

    def load(self, directory: Path) -> None:
        from areal_lit_single.snapshot import read_state

        self._take_back(read_state(directory, self._network.device))

    def export_hf(self, directory: Path) -> None:
        """Model, tokenizer, and for value and score heads ``scalar_head.safetensors``, which ``setup`` reads again."""
        from areal_lit_single.building import export

        export(self._network, dict(self._tensors()), self._spec, directory)

    def saved_bytes(self, *, has_export: bool) -> int:
        from areal_lit_single.snapshot import size_of

        state = self._state()
        return size_of(state) + (size_of(state["weights"]) if has_export else 0)

    def prepare_snapshot(self) -> None:
        from areal_lit_single.snapshot import HostCopies

        self._copies = HostCopies()
        self._copies.prepare(self._state())

    def snapshot(self) -> Snapshot:
        from areal_lit_single.snapshot import HostCopies, SingleSnapshot

        self._copies = self._copies or HostCopies()
        return SingleSnapshot(self._copies.copy(self._state()), self._network, self._spec)


def _on_cpu(outputs: TokenOutputs) -> TokenOutputs:
    given = {field.name: getattr(outputs, field.name) for field in fields(outputs)}
    return TokenOutputs(**{name: None if x is None else x.cpu() for name, x in given.items()})
