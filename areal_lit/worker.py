"""RoleWorker: what a rank runs. One per rank; holds the strategies of all roles that live there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from areal_lit.contracts import Algorithm, Callback, Head, Optimizer, Output, Rank, Strategy, WeightTransport
from areal_lit.plugins import check_fingerprint, create_plugin_manager
from areal_lit.token_batch import Loss, Objective, TokenBatch, TokenOutputs, masked_metric
from areal_lit.types import Metric, ModelSpec, TensorInfo, WeightSource
from areal_lit.weight_sync import as_announced


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
        if head == "lm" and "entropy" in algorithm.needs:
            outputs.add("entropy")
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

    def manifest(self, role: str) -> tuple[TensorInfo, ...]:
        return self._held[role].strategy.manifest()

    def send(self, role: str, transport: WeightTransport, source: WeightSource) -> None:
        transport.send(source, as_announced(source, self._held[role].strategy.weights()), self._rank)

    def save(self, role: str, directory: Path) -> None:
        self._held[role].strategy.save(directory)

    def load(self, role: str, directory: Path) -> None:
        self._held[role].strategy.load(directory)

    def export_hf(self, role: str, directory: Path) -> None:
        self._held[role].strategy.export_hf(directory)

    def _objective(self, role: str) -> Objective:
        objective = self._held[role].objective
        if objective is None:
            raise ValueError(f"the algorithm has no objective for role {role!r}; it cannot be trained or evaluated")
        return objective


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
