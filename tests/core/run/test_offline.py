"""Batches from data: every row once, errors that name it, and signals that lose none."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Container, Mapping
from typing import Any

import numpy as np
import pytest

from areal_lit.contracts import Algorithm, Source
from areal_lit.prompts import PromptStream
from areal_lit.run.interrupts import Interrupts
from areal_lit.run.offline import OfflineBatches
from areal_lit.text import TextCodec
from areal_lit.token_batch import TokenBatch
from areal_lit.types import Example, Group, ModelSpec, Prompt, Trajectory


class Rows(Algorithm):
    """A sequence per row, as many tokens as its number and one, and none of rows in ``empty``.

    ``before`` is called with each row.
    """

    offline = True

    def __init__(self, before: Callable[[int], None] = lambda row: None, *, empty: Container[int] = ()) -> None:
        self.before = before
        self.empty = empty

    def encode(self, prompt: Prompt, codec: TextCodec) -> list[Trajectory]:
        self.before(prompt.row)
        if prompt.row in self.empty:
            return []
        n = prompt.row + 2
        return [
            Trajectory(
                token_ids=np.arange(n), loss_mask=np.arange(n) > 0, logprobs=np.zeros(n, np.float32),
                versions=np.full(n, -1), prompt=prompt,
            )
        ]  # fmt: skip

    def prepare(self, batch: TokenBatch) -> TokenBatch:
        return batch

    def weigh(self, minibatch: TokenBatch) -> TokenBatch:
        return minibatch

    def objectives(self) -> Mapping[str, Any]:
        return {}


def batches(algorithm: Rows, *, num_rows: int = 5, num_epochs: int | None = 1) -> OfflineBatches:
    source = Source(examples=[Example(prompt=f"p{i}") for i in range(num_rows)])
    return OfflineBatches(
        stream=PromptStream({"data": source}, seed=0, shuffle=False, num_epochs=num_epochs),
        algorithm=algorithm,
        codec=TextCodec(ModelSpec(path="unused")),
        groups_per_step=2,
    )


def rows(groups: list[Group] | None) -> list[int]:
    return [group.prompt.row for group in groups or []]


def test_every_row_comes_once_and_the_last_batch_is_short() -> None:
    made = batches(Rows())
    assert [rows(made.next_batch(step)) for step in range(4)] == [[0, 1], [2, 3], [4], []]
    assert made.next_batch(4) is None


def test_rows_and_tokens_are_counted_between_calls() -> None:
    made = batches(Rows())
    made.next_batch(0)
    assert {metric.name: metric.value for metric in made.metrics()} == {
        "data/rows": 2, "data/tokens": 5, "data/empty_rows": 0,
    }  # fmt: skip
    assert {metric.value for metric in made.metrics()} == {0}


def test_the_position_is_taken_back() -> None:
    made = batches(Rows())
    made.next_batch(0)
    again = batches(Rows())
    again.load_state_dict(made.state_dict())
    assert rows(again.next_batch(1)) == [2, 3]


def test_rows_that_give_nothing_are_replaced_and_counted() -> None:
    made = batches(Rows(empty={0, 2, 4}))
    assert rows(made.next_batch(0)) == [1, 3]
    assert {metric.name: metric.value for metric in made.metrics()}["data/empty_rows"] == 2
    assert made.next_batch(1) is None


def test_data_of_such_rows_alone_ends_the_run() -> None:
    with pytest.raises(ValueError, match=r"Rows left out 10000 rows in a row, the last of them row 4 of source 'data'"):
        batches(Rows(empty=range(5)), num_epochs=None).next_batch(0)


def test_a_bad_row_is_named() -> None:
    def fail(row: int) -> None:
        if row == 1:
            raise KeyError("completion")

    with pytest.raises(ValueError, match="row 1 of source 'data': 'completion'"):
        batches(Rows(fail)).next_batch(0)


def test_a_signal_while_rows_are_encoded_loses_none() -> None:
    made = batches(Rows(lambda row: os.kill(os.getpid(), signal.SIGTERM) if row == 2 else None))
    with Interrupts(lambda: None) as interrupts:
        interrupts.is_patient = True
        assert rows(made.next_batch(0)) == [0, 1]
        assert rows(made.next_batch(1)) == [2, 3]
    assert interrupts.requested
    again = batches(Rows())
    again.load_state_dict(made.state_dict())
    assert rows(again.next_batch(2)) == [4]
