"""Queries: which samples, in which order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from areal_lit.run_records import Query, RecordsError, SampleIndex

RECORDS = [
    {"step": 1, "source": "sums", "reward": 1.0, "completion": "Carry the one.", "num_generated": 5},
    {"step": 1, "source": "maths", "reward": -0.5, "completion": "no", "num_generated": 9, "stop_reason": "length"},
    {"step": 2, "source": "sums", "reward": None, "completion": "carry\n the  ONE", "versions": [0, 1]},
    {"step": 3, "source": "sums", "reward": 0.25, "prompt": [{"role": "user", "content": "Straße: 5"}], "prompt_id": 7},
]  # fmt: skip


@pytest.fixture
def index(tmp_path: Path) -> SampleIndex:
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in RECORDS))
    found = SampleIndex(path)
    found.refresh()
    return found


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", [0, 1, 2, 3]),
        ("step:1", [0, 1]),
        ("step:2..", [2, 3]),
        ("step:..2 source:sums", [0, 2]),
        ("reward:..0", [1]),
        ("reward:-1..0.25", [1, 3]),
        ("stop:length", [1]),
        ("staleness:1", [2]),
        ("length:3..6", [0]),
        ("prompt:7", [3]),
        ("carry the one", [0, 2]),
        ("STRASSE: 5", [3]),
        ("sort:-reward", [0, 3, 1, 2]),
        ("sort:length", [2, 3, 0, 1]),
        ("sort:-step source:sums", [3, 2, 0]),
        ("step:9", []),
    ],
)
def test_what_a_query_selects(index: SampleIndex, line: str, expected: list[int]) -> None:
    found = Query.parse(line).select(index)
    assert [index.entries.index(entry) for entry in found] == expected


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("step:one", "'step:one' is no range; write step:5, :5.., :..5 or :2..5"),
        ("reward:", "'reward:' is an empty range"),
        ("step:5..2", "'step:5..2' is an empty range"),
        ("sort:rewards", "cannot sort by 'rewards'; did you mean reward?"),
    ],
)
def test_what_cannot_be_read_is_told(line: str, told: str) -> None:
    with pytest.raises(RecordsError) as raised:
        Query.parse(line)
    assert told in str(raised.value)
