"""The built-in engine, except that it lies about prompts that begin with certain letters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from areal_lit.contracts import ProcessSpec
from areal_lit.testing.tiny import tiny_tokenizer
from areal_lit.types import ModelSpec
from areal_lit_inference.transformers import Transformers, server
from areal_lit_inference.transformers.engine import Engine
from areal_lit_inference.transformers.rows import Finished
from areal_lit_inference.transformers.rows import Sequence as EngineSequence

LIES = {
    "a": lambda true: {"token_ids": np.zeros(3, np.uint8)},
    "b": lambda true: {"logprobs": true.logprobs[1:]},
    "c": lambda true: {"token_ids": true.token_ids + 64},
    "d": lambda true: {"token_ids": true.token_ids - 64},
    "e": lambda true: {"version": true.version + 5},
    "f": lambda true: {"logprobs": np.ones_like(true.logprobs)},
    "g": lambda true: {"logprobs": np.full_like(true.logprobs, np.nan)},
    "h": lambda true: {"token_ids": np.tile(true.token_ids, 9), "logprobs": np.tile(true.logprobs, 9)},
}
"""Unreadable bytes, a log-prob too few, ids outside the vocabulary on either side, a version from the future, log-probs
of 1 and of NaN, more tokens than were asked for."""


class Lying(Transformers):
    """Its engine process runs ``serve`` of this module."""

    def processes(self, spec: ModelSpec, *, seed: int, deterministic: bool) -> Sequence[ProcessSpec]:
        (true,) = super().processes(spec, seed=seed, deterministic=deterministic)
        return [replace(true, target="lying_engine:serve")]


class LyingEngine(Engine):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.decode = tiny_tokenizer().decode
        self.letters: dict[int, str] = {}

    def submit(self, sequence: EngineSequence) -> Finished | None:
        self.letters[sequence.number] = self.decode(sequence.token_ids[:1])
        return super().submit(sequence)

    def step(self, *, admit: bool = True) -> list[Finished]:
        return [
            replace(true, **LIES[letter](true)) if (letter := self.letters[true.number]) in LIES else true
            for true in super().step(admit=admit)
        ]


def serve(address: str, **kwargs: Any) -> None:
    server.Engine = LyingEngine  # type: ignore[misc]
    server.serve(address, **kwargs)
