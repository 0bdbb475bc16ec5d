"""Rows that come again: what samplers are told and when, and what stays true of order, shares and resume."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_lit.contracts import RowSampler, Source
from areal_lit.prompts import PromptStream
from areal_lit.types import Example, Prompt


class Recorder(RowSampler):
    """Brings back, every second time, the row it was told of last."""

    def __init__(self) -> None:
        self.told: list[tuple[int, tuple[float, ...]]] = []

    def choose(self, seed: int) -> int | None:
        return self.told[-1][0] if self.told and seed % 2 else None

    def observe(self, row: int, rewards: Sequence[float]) -> None:
        self.told.append((row, tuple(rewards)))

    def state_dict(self) -> dict[str, object]:
        return {"told": self.told}

    def load_state_dict(self, state: dict[str, list[tuple[int, tuple[float, ...]]]]) -> None:
        self.told = [(row, tuple(rewards)) for row, rewards in state["told"]]


class Beyond(Recorder):
    def choose(self, seed: int) -> int:
        return 9


def stream(*, sampler: RowSampler | None, num_epochs: int | None = None, plain: int = 0) -> PromptStream:
    sources = {"data": Source(examples=[Example(prompt=f"p{i}") for i in range(6)], sampler=sampler)}
    if plain:
        sources["plain"] = Source(examples=[Example(prompt=f"q{i}") for i in range(plain)])
    return PromptStream(sources, seed=3, num_epochs=num_epochs)


def draw(stream: PromptStream, num: int) -> list[Prompt]:
    return [prompt for _ in range(num) if (prompt := stream.next()) is not None]


def consume(stream: PromptStream, prompts: Sequence[Prompt]) -> None:
    for prompt in prompts:
        stream.outcomes.add(prompt, [float(prompt.prompt_id)])
    stream.outcomes.close_step()


def test_a_step_is_told_at_the_first_draw_after_it_in_order_of_drawing() -> None:
    sampler = Recorder()
    data = stream(sampler=sampler)
    first = draw(data, 3)
    data.outcomes.add(first[2], ())
    data.outcomes.add(first[0], [0.5])
    draw(data, 1)
    assert sampler.told == [], "the step is not over: its draws must not depend on which groups finish first"
    consume(data, [first[1]])
    assert sampler.told == []
    draw(data, 1)
    assert sampler.told == [(first[0].row, (0.5,)), (first[1].row, (1.0,)), (first[2].row, ())]
    draw(data, 1)
    assert len(sampler.told) == 3


def test_what_is_rolled_out_again_is_told_once() -> None:
    sampler = Recorder()
    data = stream(sampler=sampler)
    prompts = draw(data, 2)
    consume(data, prompts)
    data.push_back([prompts[1]])
    again = data.next()
    assert again == prompts[1]
    draw(data, 1)
    assert sampler.told == [(prompts[0].row, (0.0,))]
    consume(data, [again])
    draw(data, 1)
    assert sampler.told[1:] == [(again.row, (1.0,))]


def test_epochs_pass_every_row_once_whatever_comes_again_between() -> None:
    data = stream(sampler=Recorder(), num_epochs=2)
    plain = [(p.row, p.epoch) for p in draw(stream(sampler=None, num_epochs=2), 99)]
    prompts: list[Prompt] = []
    in_order = []
    while prompt := data.next():
        before = data.state_dict()
        if before["drawn"]["data"] > len(in_order):
            in_order.append((prompt.row, prompt.epoch))
        prompts.append(prompt)
        consume(data, [prompt])
    assert in_order == plain
    assert len(prompts) > len(plain), "some came again"
    assert [p.prompt_id for p in prompts] == list(range(len(prompts)))


def test_what_comes_again_counts_in_its_sources_share() -> None:
    data = stream(sampler=Recorder(), plain=50)
    counts: Counter[str] = Counter()
    for num in range(1, 60):
        (prompt,) = draw(data, 1)
        consume(data, [prompt])
        counts[prompt.source] += 1
        assert abs(counts["data"] - num / 2) <= 1


@given(steps=st.lists(st.integers(0, 5), max_size=12), rejected=st.integers(0, 4), taken_back=st.booleans())
def test_a_resumed_stream_goes_on_as_an_uninterrupted_one(steps: list[int], rejected: int, taken_back: bool) -> None:
    """Steps of some groups, then one that was interrupted after rejections, or given back after it was taken."""
    data = stream(sampler=Recorder())
    for num in steps:
        consume(data, draw(data, num))
    prompts = draw(data, 5)
    for prompt in prompts[:rejected]:
        data.outcomes.add(prompt, ())
    rest = prompts[rejected:]
    if taken_back:
        resumed = stream(sampler=Recorder())
        consume(data, rest)
        state = json.loads(json.dumps(data.state_dict()))
        data.push_back(rest)
        resumed.load_state_dict(json.loads(json.dumps(data.state_dict())))
        data = stream(sampler=Recorder())
        data.load_state_dict(state)
        assert draw(resumed, len(rest)) == rest
        consume(resumed, rest)
    else:
        resumed = stream(sampler=Recorder())
        resumed.load_state_dict(json.loads(json.dumps(data.state_dict(rest))))
        assert draw(resumed, len(rest)) == rest
        assert draw(resumed, 2) == draw(data, 2)
    for one in (data, resumed):
        if not taken_back:
            consume(one, rest)
    assert draw(resumed, 20) == draw(data, 20)


def test_samplers_may_come_and_go_over_a_resume() -> None:
    data = stream(sampler=Recorder())
    consume(data, draw(data, 4))
    without = stream(sampler=None)
    without.load_state_dict(data.state_dict())
    assert without.next() is not None
    with_fresh = stream(sampler=Recorder())
    with_fresh.load_state_dict(without.state_dict())
    assert with_fresh.next() is not None


def test_a_row_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="Beyond chose row 9 of data source 'data', which has 6 examples"):
        stream(sampler=Beyond()).next()
