"""Which of the waiting sequences start together."""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import pytest

from areal_lit.types import Sampling
from areal_lit_inference.transformers.rows import Sequence
from areal_lit_inference.transformers.waiting import URGENT_SLOTS, Waiting


def sequence(number: int, prompt: str, *, is_urgent: bool = False) -> Sequence:
    token_ids = np.array([ord(letter) for letter in prompt], np.int64)
    return Sequence(
        number=number, token_ids=token_ids, sampling=Sampling(), noise=np.uint64(number), is_urgent=is_urgent
    )


def waiting(*prompts: str, max_slots: int = 8, max_prefill_tokens: int = 6) -> Waiting:
    """Prompts in the order of their numbers; an urgent one ends in an exclamation mark."""
    queue = Waiting(max_slots=max_slots, max_prefill_tokens=max_prefill_tokens)
    for number, prompt in enumerate(prompts):
        queue.add(sequence(number, prompt, is_urgent=prompt.endswith("!")))
    return queue


def taken(queue: Waiting, num_active: int = 0, running: Container[bytes] = ()) -> list[list[int]]:
    return [[member.number for member in members] for members in queue.take(num_active, running).values()]


@pytest.mark.parametrize(
    ("prompts", "together"),
    [
        (("abc", "def", "ghi"), [[0], [1]]),
        (("abc", "defg", "h"), [[0]]),
        (("abc", "abc", "def", "abc"), [[0, 1], [2]]),
        (("abcdefghij", "k"), [[0]]),
        (("a", "bcdefghij"), [[0]]),
    ],
)
def test_prompts_that_start_together_fill_one_prefill(prompts: tuple[str, ...], together: list[list[int]]) -> None:
    queue = waiting(*prompts)
    assert taken(queue) == together
    assert len(queue) == len(prompts) - sum(map(len, together))


def test_prompts_of_running_sequences_take_no_room_of_a_prefill() -> None:
    running = sequence(9, "abcdef").prompt_key
    assert taken(waiting("abcdef", "ghijkl", "abcdef"), running={running}) == [[0], [1]]
    assert taken(waiting("abcdef", "abcdef", "ghijkl"), running={running}) == [[0, 1], [2]]


def test_urgent_ones_come_first_and_find_slots_when_all_others_are_taken() -> None:
    queue = waiting("a", "b", "c!", max_slots=2)
    assert taken(queue, num_active=2) == [[2]]
    assert taken(queue, num_active=1) == [[0]]
    queue.add(sequence(3, "d", is_urgent=True))
    assert taken(queue, num_active=2 + URGENT_SLOTS) == []
    assert taken(queue, num_active=1 + URGENT_SLOTS) == [[3]]


def test_what_is_forgotten_never_starts() -> None:
    queue = waiting("a", "b", "c")
    queue.forget({0, 2, 7})
    assert taken(queue) == [[1]]
