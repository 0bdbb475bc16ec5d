"""What the inference suite runs: a backend, requests to it, and what its answers have to be.

Shapes: n tokens of one sequence.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from areal_lit.contracts.inference import InferenceBackend
from areal_lit.types import Completion, FloatArray, GenerateRequest, IntArray, Sampling, WeightSource

Publish = Callable[[int], WeightSource]
Reference = Callable[[int, IntArray, float], FloatArray]


@dataclass(slots=True, kw_only=True)
class InferenceCase:
    """A backend under test and what the suite knows about it; see ``check_inference``."""

    backend: InferenceBackend
    publish: Publish
    reference: Reference
    prompt: IntArray
    max_length: int
    tolerance: float
    version: int = 0
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def longest(self) -> int:
        """The largest budget after the prompt."""
        return self.max_length - len(self.prompt)

    async def update(self) -> None:
        """Move to the next version."""
        self.version += 1
        await self.backend.update_weights(self.publish(self.version))

    async def generate(
        self, budget: int, *, seed: int = 0, prompt: IntArray | None = None, ignore_eos: bool = True,
        temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, stop_token_ids: tuple[int, ...] = (),
        is_urgent: bool = False,
    ) -> Completion:  # fmt: skip
        """One request's completion."""
        sampling = Sampling(
            max_new_tokens=budget, temperature=temperature, top_p=top_p, top_k=top_k, ignore_eos=ignore_eos,
            stop_token_ids=stop_token_ids,
        )  # fmt: skip
        number = next(self._numbers)
        return await self.backend.generate(
            GenerateRequest(
                request_id=f"check-{number}", token_ids=self.prompt if prompt is None else prompt, sampling=sampling,
                seed=seed, prefix_group="check" if prompt is None else "", is_urgent=is_urgent,
            )
        )  # fmt: skip

    def start(self, count: int, budget: int) -> list[asyncio.Task[Completion]]:
        """Requests of different seeds that run at once."""
        return [asyncio.create_task(self.generate(budget, seed=seed)) for seed in range(count)]

    def check(self, completion: Completion, *, prompt: IntArray | None = None, temperature: float = 1.0) -> None:
        """Lengths, finite log-probs, and each token's log-prob under the very version it is labelled with."""
        prompt = self.prompt if prompt is None else prompt
        n = len(completion.token_ids)
        sizes = n, len(completion.logprobs), len(completion.versions)
        assert len(set(sizes)) == 1, f"tokens, log-probs and versions must be equally many, got {sizes}"
        assert np.isfinite(completion.logprobs).all(), f"log-probs must be finite, got {completion.logprobs}"
        sequence = np.concatenate([prompt, completion.token_ids])
        for version in np.unique(completion.versions).tolist():
            expected = self.reference(version, sequence, temperature)[len(prompt) :]
            labelled = completion.versions == version
            difference = np.abs(expected - completion.logprobs)[labelled].max()
            assert difference <= self.tolerance, (
                f"log-probs of tokens labelled version {version} differ from that version's by {difference:.3g}, "
                f"allowed is {self.tolerance}: wrong weights, a stale prefix, an echoed prompt or another distribution"
            )
