"""Role: a model with a part to play (policy, reference, critic, teacher), and its handle in the controller."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from areal_lit.activity import Activity
from areal_lit.contracts import Algorithm, Callback, Head, Optimizer, Output, Strategy, WeightTransport, WorkerGroup
from areal_lit.refresh import Refresh
from areal_lit.sizes import MAX_PROCESSES, MAX_THREADS, require_size
from areal_lit.token_batch import TokenBatch, TokenOutputs
from areal_lit.types import Metric, ModelSpec, TensorInfo, WeightSource, merge_metrics

logger = logging.getLogger(__name__)

OF_THE_STEP = frozenset({"grad_norm", "lr", "skipped_steps"})
"""What ``Strategy.optimizer_step`` says of the whole step, on every rank alike; all else is a data shard's share."""


DOING = {
    "setup": "loading the {}",
    "forward": "a forward pass of the {}",
    "optimizer_step": "an optimizer step of the {}",
    "save": "saving the {}",
    "load": "restoring the {}",
    "take_weights": "refreshing the {}",
}
"""What a call to the ranks of a role is for people."""


@final
@dataclass(frozen=True, kw_only=True)
class Role:
    """A model, where it lives, and how it is trained.

    Args:
        model: which weights and tokenizer it starts from.
        strategy: how the model lives on its ranks.
        optimizer: for trained roles; without one the role is frozen.
        num_ranks: processes (one per GPU) of the role's worker group.
        num_threads: CPU threads per rank; 0 leaves torch's default.
        num_gpus: GPUs that each rank sees; a fraction shares one, 0 shows all there are.
        colocate_with: another role on whose ranks this one lives; by default it has ranks of its own.
        refresh: of a frozen role that follows the policy, on whose ranks it lives then; by default it stays as it is.
    """

    model: ModelSpec
    strategy: Strategy
    optimizer: Optimizer | None = None
    num_ranks: int = 1
    num_threads: int = 0
    num_gpus: float = 0
    colocate_with: str | None = None
    refresh: Refresh | None = None

    def __post_init__(self) -> None:
        require_size("num_ranks", self.num_ranks, least=1, most=MAX_PROCESSES)
        require_size("num_threads", self.num_threads, least=0, most=MAX_THREADS)
        require_size("num_gpus", self.num_gpus, least=0, most=MAX_PROCESSES)


class RoleGroup:
    """A role's ranks as the controller sees them: whole batches in, whole results out.

    Args:
        watch: raises when the run has failed elsewhere; called while waiting.
        timeout_s: longest a single call may take.
        activity: told what is waited for.
    """

    def __init__(
        self, name: str, role: Role, group: WorkerGroup, *, watch: Callable[[], None], timeout_s: float,
        activity: Activity | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.role = role
        self._group = group
        self._watch = watch
        self._timeout_s = timeout_s
        self._activity = activity or Activity()
        self._manifest: tuple[TensorInfo, ...] | None = None
        shards = list(role.strategy.data_shards(role.num_ranks))
        self._shard_of_rank = shards
        self._num_shards = max(shards) + 1
        self._first_rank = [shards.index(shard) for shard in range(self._num_shards)]

    def start(
        self,
        *,
        head: Head,
        num_steps: int | None,
        algorithm: Algorithm,
        callbacks: Sequence[Callback],
        fingerprint: Mapping[str, str],
    ) -> list[Future[Any]]:
        """Have every rank load the model; returns at once."""
        return self._call(
            "setup", self.name, self.role.strategy, self.role.model, head, self.role.optimizer, num_steps, algorithm,
            tuple(callbacks), dict(fingerprint),
        )  # fmt: skip

    def forward(self, batch: TokenBatch, outputs: frozenset[Output]) -> TokenOutputs:
        """Outputs for the whole batch, in its order, without gradient."""
        from areal_lit.batching import unshard

        plan, shards = self._shard(batch)
        results = self.wait(self._call("forward", self.name, outputs, per_rank=shards), "forward")
        return unshard(batch, plan, [results[rank] for rank in self._first_rank])

    def optimizer_step(self, minibatch: TokenBatch) -> list[Future[Any]]:
        """Start one optimizer step over a weighed mini-batch on every rank."""
        return self._call("optimizer_step", self.name, per_rank=self._shard(minibatch)[1])

    def evaluate(self, batch: TokenBatch) -> list[Metric]:
        """The objective's metrics and the weighted loss, without gradient."""
        futures = self._call("evaluate", self.name, per_rank=self._shard(batch)[1])
        return self.collect(futures, "evaluate")

    def end_step(self) -> None:
        self.wait(self._call("end_step", self.name), "end_step")

    def take_weights(self, source: str, *, decay: float) -> None:
        """Have every rank mix the weights of another role on the same ranks into this one's."""
        self.wait(self._call("take_weights", self.name, source, decay), "take_weights")

    def manifest(self) -> tuple[TensorInfo, ...]:
        """What ``send`` will deliver; asked for once, since names and shapes never change."""
        if self._manifest is None:
            self._manifest = self.wait(self._call("manifest", self.name), "manifest")[0]
        return self._manifest

    def send(self, transport: WeightTransport, source: WeightSource) -> list[Future[Any]]:
        """Start delivering weights on every rank."""
        return self._call("send", self.name, transport, source)

    def prepare_save(self) -> list[Future[Any]]:
        """Have every rank get ready for the first save in the background; nobody needs to wait."""
        return self._call("prepare_save", self.name)

    def save(
        self, directory: Path, *, export: Path | None = None, in_background: bool, timeout_s: float
    ) -> list[Future[Any]]:
        """Start writing every rank's state below ``directory``, as it is before any later call.

        Args:
            export: write a Hugging Face model there too.
            in_background: ranks take later calls while they write.
            timeout_s: longest it may take; then the rank counts as hung.
        """
        return self._group.call("save", self.name, directory, export, in_background, timeout_s=timeout_s)

    def load(self, directory: Path) -> None:
        """Read every rank's state."""
        self.wait(self._call("load", self.name, directory), "load")

    def collect(self, futures: Sequence[Future[Any]], what: str) -> list[Metric]:
        """Metrics of all data shards merged, prefixed with the phase (``train/`` for the policy)."""
        results = self.wait(futures, what)
        first, *others = [results[rank] for rank in self._first_rank]
        shares = [metric for result in others for metric in result if metric.name not in OF_THE_STEP]
        merged = merge_metrics([*first, *shares])
        if (skipped := merged.get("skipped_steps")) is not None and skipped.value:
            logger.warning("%s: an optimizer step was skipped, its gradients were not finite", self.name)
        if (loss := merged.get("loss")) is not None:  # whole now, and of one mini-batch: a step's is the mean of its
            merged["loss"] = Metric(name="loss", sum=loss.sum)
        prefix = "train" if self.name == "policy" else self.name
        return [replace(metric, name=f"{prefix}/{metric.name}") for metric in merged.values()]

    def wait(self, futures: Sequence[Future[Any]], what: str) -> list[Any]:
        """Results of a call on every rank; raises the first failure, of this group or elsewhere in the run."""
        deadline = time.monotonic() + self._timeout_s + 5
        pending: set[Future[Any]] = set(futures)
        with self._activity.during(DOING.get(what, f"{what} of the {{}}").format(self.name)):
            while pending:
                done, pending = wait(pending, timeout=0.5, return_when=FIRST_EXCEPTION)
                for future in done:
                    _check(future)
                if pending:
                    self._watch()
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"{self.name}: no answer to {what} within {self._timeout_s:.0f} s")
        return [future.result() for future in futures]

    def _call(self, method: str, *args: Any, per_rank: Sequence[Any] | None = None) -> list[Future[Any]]:
        return self._group.call(method, *args, per_rank=per_rank, timeout_s=self._timeout_s)

    def _shard(self, batch: TokenBatch) -> tuple[Any, list[list[TokenBatch]]]:
        """The plan, and the micro-batches of every rank."""
        from areal_lit.batching import plan_shards, shard

        strategy = self.role.strategy
        plan = plan_shards(
            batch,
            num_shards=self._num_shards,
            max_tokens=strategy.max_tokens_per_microbatch,
            packing=strategy.packing,
        )
        shards = shard(batch, plan)
        return plan, [shards[index] for index in self._shard_of_rank]


def _check(future: Future[Any]) -> None:
    """Raise what a call raised; a rank that does not answer has said in its log where it hangs."""
    try:
        future.result()
    except TimeoutError as error:
        if error.__cause__ is not None:  # the method's own
            raise
        raise TimeoutError(f"{error} (call_timeout_s); where it hangs is in its log") from error
