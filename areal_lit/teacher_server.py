"""TeacherServer: a teacher that answers from an inference engine instead of ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from areal_lit.contracts import InferenceBackend, ProcessSpec
from areal_lit.types import ModelSpec


@final
@dataclass(frozen=True, kw_only=True)
class TeacherServer:
    """A frozen teacher behind an inference backend of its own, which is never given new weights.

    Args:
        model: which weights and tokenizer it has.
        inference: the backend; it must score given tokens.
        max_concurrent: sequences that are with it at once.
    """

    model: ModelSpec
    inference: InferenceBackend
    max_concurrent: int = 64

    def __post_init__(self) -> None:
        if self.max_concurrent < 1:
            raise ValueError(f"max_concurrent must be >= 1, got {self.max_concurrent}")

    def processes(self, *, seed: int, deterministic: bool) -> list[ProcessSpec]:
        """The engine processes to start, named apart from those that serve the policy."""
        specs = self.inference.processes(self.model, seed=seed, deterministic=deterministic)
        return [replace(spec, name=f"teacher-{spec.name}") for spec in specs]
