"""Waiting: the sequences that no slot was free for yet, and which of them start together."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container

from areal_lit_inference.transformers.rows import Sequence

URGENT_SLOTS = 2
"""Slots beyond ``max_slots`` that only urgent sequences take: as many as a parity probe has prompts."""


class Waiting:
    """A queue in the order in which sequences came; urgent ones overtake all others.

    Args:
        max_slots: sequences decoded together at most, not counting urgent ones.
        max_prefill_tokens: prompt tokens that start together at most, unless a single prompt has more.
    """

    def __init__(self, *, max_slots: int, max_prefill_tokens: int) -> None:
        self._max_slots = max_slots
        self.num_slots = max_slots + URGENT_SLOTS
        self._max_prefill_tokens = max_prefill_tokens
        self._queue: deque[Sequence] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, sequence: Sequence) -> None:
        """Have a sequence wait."""
        if sequence.is_urgent:
            self._queue.appendleft(sequence)
        else:
            self._queue.append(sequence)

    def forget(self, numbers: Collection[int]) -> None:
        """Remove the sequences of these numbers."""
        self._queue = deque(s for s in self._queue if s.number not in numbers)

    def take(self, num_active: int, running: Container[bytes]) -> dict[bytes, list[Sequence]]:
        """Remove those that can start now, by their prompts: equal ones are computed once.

        Args:
            num_active: slots that are taken.
            running: prompts that cost nothing, as a running sequence has them.
        """
        prompts: dict[bytes, list[Sequence]] = {}
        num_tokens = 0
        while self._queue and num_tokens < self._max_prefill_tokens:
            sequence = self._queue[0]
            if num_active >= (self.num_slots if sequence.is_urgent else self._max_slots):
                break
            key = sequence.prompt_key
            if key not in prompts and key not in running:
                num_tokens += len(sequence.token_ids)
                if prompts and num_tokens > self._max_prefill_tokens:
                    break
            prompts.setdefault(key, []).append(self._queue.popleft())
            num_active += 1
        return prompts
