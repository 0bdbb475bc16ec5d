"""RoleWorker: what a rank runs. One per rank; holds the strategies of all roles that live there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from areal_lit import random_states
from areal_lit.background import in_thread
from areal_lit.contracts import Algorithm, Callback, Head, Optimizer, Output, Rank, Strategy, WeightTransport
from areal_lit.files import writing
from areal_lit.plugins import check_fingerprint, create_plugin_manager
from areal_lit.token_batch import Loss, Objective, TokenBatch, TokenOutputs, masked_metric
from areal_lit.types import Metric, ModelSpec, TensorInfo, WeightSource
from areal_lit.weight_sync import as_announced

BACKGROUND_NICENESS = 10
"""Of threads that write checkpoints: on busy cores training comes first."""

ON_RANKS: frozenset[Output] = frozenset({"entropy", "topk", "divergence"})
"""Needs that are outputs of a trained language model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    strategy: Strategy
    objective: Objective | None
    outputs: frozenset[Output]


class RoleWorker:
    """Answers the controller's calls for every role on this rank. The first argument names the role."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._held: dict[str, _Held] = {}
        self._moved: set[str] = set()

    def setup(
        self,
        role: str,
        strategy: Strategy,
        spec: ModelSpec,
        head: Head,
        optimizer: Optimizer | None,
        num_steps: int | None,
        algorithm: Algorithm,
        callbacks: Sequence[Callback],
        fingerprint: Mapping[str, str],
    ) -> None:
        """Load a role's model. Refuses components of another version than the controller's."""
        check_fingerprint(fingerprint)
        hook = create_plugin_manager(callbacks).hook
        strategy.on_before_optimizer_step = lambda model: hook.before_optimizer_step(model=model, role=role)
        strategy.setup(spec, head=head, optimizer=optimizer, num_steps=num_steps, rank=self._rank)
        outputs: set[Output] = {"logprob"} if head == "lm" else {"value"}
        if head == "lm":
            outputs |= ON_RANKS & algorithm.needs
        if role == "teacher" and "divergence" in algorithm.needs:
            self._held["policy"].strategy.compare_with(strategy, algorithm.pointwise_divergence)
        self._held[role] = _Held(
            strategy=strategy, objective=algorithm.objectives().get(role), outputs=frozenset(outputs)
        )

    def forward(self, microbatches: Sequence[TokenBatch], role: str, outputs: frozenset[Output]) -> list[TokenOutputs]:
        return self._held[role].strategy.forward(microbatches, outputs)

    def optimizer_step(self, microbatches: Sequence[TokenBatch], role: str) -> list[Metric]:
        held = self._held[role]
        objective = self._objective(role)
        if role not in self._moved:
            objective = reporting_mismatch(objective)
            self._moved.add(role)
        return held.strategy.optimizer_step(microbatches, objective, held.outputs)

    def evaluate(self, microbatches: Sequence[TokenBatch], role: str) -> list[Metric]:
        held = self._held[role]
        return held.strategy.evaluate(microbatches, self._objective(role), held.outputs)

    def end_step(self, role: str) -> None:
        self._held[role].strategy.end_step()
        self._moved.discard(role)

    def take_weights(self, role: str, source: str, decay: float) -> None:
        self._held[role].strategy.copy_from(self._held[source].strategy, decay=decay)

    def manifest(self, role: str) -> tuple[TensorInfo, ...]:
        return self._held[role].strategy.manifest()

    def send(self, role: str, transport: WeightTransport, source: WeightSource) -> None:
        transport.send(source, as_announced(source, self._held[role].strategy.weights()), self._rank)

    def prepare_save(self, role: str) -> None:
        self._held[role].strategy.prepare_snapshot()

    def save(self, role: str, directory: Path, export: Path | None, in_background: bool) -> Future[None] | None:
        """Write the role's state, and its export if a directory for that is given.

        Args:
            in_background: return once the state is copied; a thread writes it, where the strategy can. The future is
                done when it has.
        """
        strategy = self._held[role].strategy
        random_file = directory / _random_file(self._rank)
        random_state = random_states.capture()
        snapshot = strategy.snapshot() if in_background else None
        needed_bytes = strategy.saved_bytes(has_export=export is not None)

        def write() -> None:
            source = snapshot or strategy
            with writing(directory, needed_bytes=needed_bytes):
                random_file.write_text(json.dumps(random_state))
                source.save(directory)
                if export is not None:
                    source.export_hf(export)

        if snapshot is not None:
            return in_thread(write, name=f"areal-lit-save-{role}", niceness=BACKGROUND_NICENESS)
        write()
        return None

    def load(self, role: str, directory: Path) -> None:
        self._held[role].strategy.load(directory)
        random_file = directory / _random_file(self._rank)
        if random_file.exists():  # not on a rank that the saved run did not have
            random_states.restore(json.loads(random_file.read_text()))

    def _objective(self, role: str) -> Objective:
        objective = self._held[role].objective
        if objective is None:
            raise ValueError(f"the algorithm has no objective for role {role!r}; it cannot be trained or evaluated")
        return objective


def _random_file(rank: Rank) -> str:
    return f"random-{rank.rank}.json"


def reporting_mismatch(objective: Objective) -> Objective:
    """The objective, with a metric of how far engine and trainer differ on tokens drawn with the weights of this step.

    For a step's first mini-batch, before the weights move. Where ``proximal`` was recomputed, that is compared instead.
    """

    def watched(outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        loss = objective(outputs, batch)
        if outputs.logprob_T is None or "proximal" in batch or "step" not in batch.scalars:
            return loss
        drawn_T = batch["loss_mask"] & (batch["version"] == batch.scalars["step"])
        if not drawn_T.any():
            return loss
        difference_T = (outputs.logprob_T.detach() - batch["logprob"]).abs()
        mismatch = (
            masked_metric("logprob_mismatch", difference_T, drawn_T),
            masked_metric("logprob_mismatch_max", difference_T, drawn_T, "max"),
        )
        return replace(loss, metrics=(*loss.metrics, *mismatch))

    return watched
