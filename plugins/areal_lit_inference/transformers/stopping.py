"""What ends a completion: end tokens, a request's own stop tokens and strings, and the budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from areal_lit.types import IntArray, StopReason
from areal_lit_inference.transformers.rows import Rows

_TAIL_MARGIN = 8
"""Tokens decoded beyond a stop string's bytes, as the first decoded ones may lose a leading space."""


class Stopping:
    """Decides after each step which slots have ended.

    Args:
        end_token_ids: the model's.
        vocab_size: of the model's output.
        decode: token ids to text, special tokens included; for requests with stop strings.
    """

    def __init__(self, *, end_token_ids: Sequence[int], vocab_size: int, decode: Callable[[list[int]], str]) -> None:
        self.decode = decode
        self.is_end = np.zeros(vocab_size, bool)
        self.is_end[[i for i in end_token_ids if i < vocab_size]] = True

    def ended(self, rows: Rows, first: int, token_n: IntArray) -> dict[int, StopReason]:
        """The slots from ``first`` on that end with the token just recorded, and why."""
        stopped_n = self.is_end[token_n] & ~rows.ignores_end[first : len(rows)]
        spent_n = rows.left[first : len(rows)] <= 0
        reasons: dict[int, StopReason] = {}
        over_n = stopped_n | spent_n
        if over_n.any():
            for i in over_n.nonzero()[0].tolist():
                reasons[first + i] = "stop" if stopped_n[i] else "length"
        if rows.num_own_stops:
            for slot in range(first, len(rows)):
                if rows.sequences[slot].has_own_stops and self._hits_own_stop(rows, slot):
                    reasons[slot] = "stop"
        return reasons

    def _hits_own_stop(self, rows: Rows, slot: int) -> bool:
        sampling = rows.sequences[slot].sampling
        drawn = int(rows.drawn[slot])
        if int(rows.tokens[slot, drawn - 1]) in sampling.stop_token_ids:
            return True
        if not sampling.stop:
            return False
        size = max(len(stop.encode()) for stop in sampling.stop) + _TAIL_MARGIN
        tail = self.decode(rows.tokens[slot, max(0, drawn - size) : drawn].tolist())
        return any(stop in tail for stop in sampling.stop)
