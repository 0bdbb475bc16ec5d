"""The prompt stream: order, mixtures, epochs, and an exact position."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_lit.contracts import Source
from areal_lit.prompts import PromptStream
from areal_lit.types import Example, Prompt


def source(num: int, weight: float = 1.0) -> Source:
    return Source(examples=[Example(prompt=f"p{i}") for i in range(num)], weight=weight)


def draw(stream: PromptStream, num: int) -> list[Prompt]:
    prompts = [stream.next() for _ in range(num)]
    return [prompt for prompt in prompts if prompt is not None]


def test_unshuffled_is_the_order_of_the_data_and_ids_count_up() -> None:
    stream = PromptStream({"a": source(3)}, seed=0, shuffle=False, num_epochs=2)
    prompts = draw(stream, 10)
    assert [(p.prompt_id, p.row, p.epoch, p.example.prompt) for p in prompts] == [
        (0, 0, 0, "p0"), (1, 1, 0, "p1"), (2, 2, 0, "p2"), (3, 0, 1, "p0"), (4, 1, 1, "p1"), (5, 2, 1, "p2"),
    ]  # fmt: skip
    assert stream.is_finished
    assert stream.next() is None


def test_each_epoch_is_a_permutation_of_its_own() -> None:
    rows = [p.row for p in draw(PromptStream({"a": source(50)}, seed=3), 100)]
    assert sorted(rows[:50]) == sorted(rows[50:]) == list(range(50))
    assert rows[:50] != rows[50:]
    assert rows[:50] != list(range(50))
    assert rows == [p.row for p in draw(PromptStream({"a": source(50)}, seed=3), 100)]
    assert rows != [p.row for p in draw(PromptStream({"a": source(50)}, seed=4), 100)]


def test_order_does_not_change_between_releases() -> None:
    rows = [p.row for p in draw(PromptStream({"a": source(8)}, seed=1), 8)]
    assert rows == [3, 4, 1, 0, 2, 5, 7, 6], "a saved run would go on with other prompts"


def test_shares_follow_the_weights_at_any_time() -> None:
    stream = PromptStream({"a": source(9, 3.0), "b": source(4, 1.0)}, seed=0)
    counts: Counter[str] = Counter()
    for num in range(1, 200):
        prompt = stream.next()
        assert prompt is not None
        counts[prompt.source] += 1
        assert abs(counts["a"] - 0.75 * num) <= 1


def test_source_that_is_through_leaves_the_others_their_epochs() -> None:
    prompts = draw(PromptStream({"a": source(2), "b": source(6)}, seed=0, num_epochs=1), 20)
    assert Counter(p.source for p in prompts) == {"a": 2, "b": 6}
    assert len({(p.source, p.row) for p in prompts}) == 8


def test_what_is_pushed_back_comes_first_in_order_under_its_id() -> None:
    stream = PromptStream({"a": source(9)}, seed=0, num_epochs=1)
    prompts = draw(stream, 6)
    stream.push_back([prompts[4], prompts[1]])
    assert draw(stream, 3)[:2] == [prompts[1], prompts[4]]
    draw(stream, 9)
    assert stream.is_finished
    stream.push_back([prompts[0]])
    assert not stream.is_finished
    assert stream.next() == prompts[0]


@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    weights=st.lists(st.floats(0.1, 5), min_size=3, max_size=3),
    before=st.integers(0, 30), pending=st.sets(st.integers(0, 29)), epochs=st.sampled_from([None, 1, 3]),
)  # fmt: skip
def test_saved_position_goes_on_as_if_nothing_had_happened(
    sizes: list[int], weights: list[float], before: int, pending: set[int], epochs: int | None
) -> None:
    sources = {f"s{i}": source(n, weights[i]) for i, n in enumerate(sizes)}
    stream = PromptStream(sources, seed=5, num_epochs=epochs)
    drawn = draw(stream, before)
    unconsumed = [p for p in drawn if p.prompt_id in pending]
    state = json.loads(json.dumps(stream.state_dict(unconsumed)))
    resumed = PromptStream(sources, seed=5, num_epochs=epochs)
    resumed.load_state_dict(state)
    assert draw(resumed, len(unconsumed) + 20) == unconsumed + draw(stream, 20)


def test_state_with_returned_prompts_survives_a_second_save() -> None:
    stream = PromptStream({"a": source(5)}, seed=0)
    prompts = draw(stream, 3)
    stream.push_back(prompts[1:])
    again = PromptStream({"a": source(5)}, seed=0)
    again.load_state_dict(stream.state_dict())
    assert draw(again, 2) == prompts[1:]


def test_other_data_than_was_saved_is_refused() -> None:
    stream = PromptStream({"a": source(5)}, seed=0, shuffle=False)
    state = stream.state_dict(draw(stream, 5))
    with pytest.raises(ValueError, match="sources are"):
        PromptStream({"b": source(5)}, seed=0).load_state_dict(state)
    with pytest.raises(ValueError, match="only 2 examples"):
        PromptStream({"a": source(2)}, seed=0).load_state_dict(state)


def test_a_source_that_grew_since_is_told(caplog: pytest.LogCaptureFixture) -> None:
    state = json.loads(json.dumps(PromptStream({"a": source(5), "b": source(3)}, seed=0).state_dict()))
    PromptStream({"a": source(5), "b": source(3)}, seed=0).load_state_dict(state)
    assert caplog.messages == []
    PromptStream({"a": source(7), "b": source(3)}, seed=0).load_state_dict(state)
    (told,) = caplog.messages
    assert "source 'a' had 5 examples and now has 7; in this epoch rows may come twice or never" in told


@pytest.mark.parametrize(
    ("sources", "epochs", "message"),
    [
        ({"a": source(0)}, None, "'a' has no examples"),
        ({"a": source(2, 0.0)}, None, "weight of data source 'a' must be > 0"),
        ({"a": source(2)}, 0, "num_epochs must be >= 1"),
    ],
)
def test_what_cannot_work_is_said(sources: dict[str, Source], epochs: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PromptStream(sources, seed=0, num_epochs=epochs)


def test_no_sources_are_a_stream_that_ended() -> None:
    assert PromptStream({}, seed=0).next() is None
