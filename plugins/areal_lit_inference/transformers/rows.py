"""The active sequences as arrays over slots, so that a decode step runs no Python per row.

Shapes: n active slots, C capacity for drawn tokens.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from areal_lit.types import FloatArray, IntArray, Sampling, StopReason

if TYPE_CHECKING:
    from areal_lit_inference.transformers.model import ServedModel

_COLUMNS = ("length", "last", "left", "drawn", "noise", "ignores_end", "tokens", "logprobs")


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One request on its way through the engine.

    Args:
        number: the client's number of the request.
        noise: the seed's stream (``sampling.seed_state``).
        is_urgent: it overtakes what waits, and may take a slot beyond those of other sequences.
        slot: where its keys and values lie while it is active, -1 otherwise.
    """

    number: int
    token_ids: IntArray
    sampling: Sampling
    noise: np.uint64
    is_urgent: bool = False
    slot: int = -1

    @property
    def prompt_key(self) -> bytes:
        """Equal for equal prompts."""
        return self.token_ids.tobytes()

    def refusal(self, served: ServedModel) -> str:
        """Why it cannot be served; empty if it can."""
        n, budget = len(self.token_ids), self.sampling.max_new_tokens
        if not n:
            return "a prompt must have at least one token, got none"
        if n + budget > served.max_length:
            return (
                f"{n} prompt tokens + max_new_tokens {budget} must be <= {served.max_length}, the model's "
                "max_position_embeddings; shorten the prompt or lower max_new_tokens"
            )
        return served.range_problem(self.token_ids)

    @property
    def has_own_stops(self) -> bool:
        """Whether it ends at more than the model's end tokens."""
        return bool(self.sampling.stop or self.sampling.stop_token_ids) and not self.sampling.ignore_eos


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end of one request: what was drawn, or why it is not served."""

    number: int
    token_ids: IntArray
    logprobs: FloatArray
    version: int
    stop_reason: StopReason
    error: str = ""

    @classmethod
    def refused(cls, number: int, error: str) -> Finished:
        """A request that was never started."""
        return cls(
            number=number, token_ids=np.empty(0, np.int64), logprobs=np.empty(0, np.float32), version=-1,
            stop_reason="length", error=error,
        )  # fmt: skip


class Rows:
    """Slot i's sequence and numbers; the active slots are a prefix.

    ``length`` counts cached positions, ``last`` is the token to be fed next, ``left`` the remaining budget,
    ``drawn`` the number of drawn tokens, which stand in ``tokens`` and ``logprobs`` [slots, C].
    """

    def __init__(self, max_slots: int) -> None:
        self.sequences: list[Sequence] = []
        self.num_own_stops = 0
        self.length = np.zeros(max_slots, np.int64)
        self.last = np.zeros(max_slots, np.int64)
        self.left = np.zeros(max_slots, np.int64)
        self.drawn = np.zeros(max_slots, np.int64)
        self.noise = np.zeros(max_slots, np.uint64)
        self.ignores_end = np.zeros(max_slots, bool)
        self.tokens = np.zeros((max_slots, 0), np.int64)
        self.logprobs = np.zeros((max_slots, 0), np.float32)
        self._index = np.arange(max_slots)

    def __len__(self) -> int:
        return len(self.sequences)

    def add(self, sequence: Sequence, *, length: int, last: int = 0) -> None:
        """Activate a sequence in the next slot, with ``length`` positions cached and ``last`` to be fed."""
        slot = sequence.slot = len(self.sequences)
        budget = sequence.sampling.max_new_tokens
        self.sequences.append(sequence)
        self.num_own_stops += sequence.has_own_stops
        self.length[slot] = length
        self.last[slot] = last
        self.left[slot] = budget
        self.drawn[slot] = 0
        self.noise[slot] = sequence.noise
        self.ignores_end[slot] = sequence.sampling.ignore_eos
        if budget > self.tokens.shape[1]:
            more = ((0, 0), (0, budget - self.tokens.shape[1]))
            self.tokens, self.logprobs = np.pad(self.tokens, more), np.pad(self.logprobs, more)

    def record(self, first: int, token_n: IntArray, logprob_n: FloatArray) -> None:
        """Append what was drawn for the slots from ``first`` on; it is fed next."""
        rows = slice(first, len(self))
        position_n = self.drawn[rows]
        self.tokens[self._index[rows], position_n] = token_n
        self.logprobs[self._index[rows], position_n] = logprob_n
        self.last[rows] = token_n
        self.drawn[rows] += 1
        self.left[rows] -= 1

    def finished(self, slot: int, version: int, stop_reason: StopReason) -> Finished:
        """What a slot has drawn so far."""
        drawn = self.drawn[slot]
        return Finished(
            number=self.sequences[slot].number, token_ids=self.tokens[slot, :drawn].copy(),
            logprobs=self.logprobs[slot, :drawn].copy(), version=version, stop_reason=stop_reason,
        )  # fmt: skip

    def remove(self, slots: Collection[int]) -> tuple[list[int], list[int]]:
        """Deactivate slots. Returns (from, to): the last active ones that move into the gaps, disjoint lists."""
        gone = set(slots)
        n = len(self) - len(gone)
        sources = [i for i in range(n, len(self)) if i not in gone]
        targets = sorted(i for i in gone if i < n)
        for slot in gone:
            self.sequences[slot].slot = -1
            self.num_own_stops -= self.sequences[slot].has_own_stops
        for source, target in zip(sources, targets, strict=True):
            self.sequences[target] = self.sequences[source]
            self.sequences[target].slot = target
        del self.sequences[n:]
        if sources:
            for name in _COLUMNS:
                column = getattr(self, name)
                column[targets] = column[sources]
        return sources, targets

    def permute(self, order_n: NDArray[np.int64]) -> None:
        """Slot i takes what slot ``order_n[i]`` held."""
        n = len(order_n)
        for name in _COLUMNS:
            column = getattr(self, name)
            column[:n] = column[order_n]
        self.sequences = [self.sequences[i] for i in order_n]
        for slot, sequence in enumerate(self.sequences):
            sequence.slot = slot
