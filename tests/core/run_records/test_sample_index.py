"""samples.jsonl read back: torn, rotated, growing, cut by a resumed run."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_lit.logs import BoundedFile
from areal_lit.run_records import SampleIndex
from areal_lit_loggers.samples import Samples


def line(step: int, **fields: object) -> bytes:
    return (
        json.dumps({"step": step, "prompt": "p", "completion": f"c{step}", "versions": [step - 1], **fields}).encode()
        + b"\n"
    )


def index_of(path: Path) -> SampleIndex:
    index = SampleIndex(path)
    index.refresh()
    return index


def steps(index: SampleIndex) -> list[int]:
    return [entry.head.step for entry in index.entries]


def completions(index: SampleIndex) -> list[str]:
    return [entry.read().completion for entry in index.entries]


def test_a_run_without_samples_has_none(tmp_path: Path) -> None:
    index = index_of(tmp_path / "samples.jsonl")
    assert index.entries == []
    assert index.refresh() is False


def test_torn_and_foreign_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(line(1) + b"not json\n" + b'{"step": "one"}\n' + line(2) + b'{"step": 3, "torn')
    index = index_of(path)
    assert steps(index) == [1, 2]
    assert index.num_unreadable == 2
    with path.open("ab") as file:
        file.write(b'": 1}\n')
    assert index.refresh() is True
    assert steps(index) == [1, 2, 3]


def test_records_of_older_releases_have_defaults(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(b'{"step": 4, "completion": "c", "from_the_future": [1]}\n')
    index = index_of(path)
    sample = index.entries[0].read()
    assert (sample.step, sample.completion, sample.reward, sample.staleness, sample.tokens) == (
        4,
        "c",
        None,
        None,
        None,
    )


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(2, 4))
def test_following_a_run_shows_what_is_on_disk_at_any_time(
    tmp_path_factory: pytest.TempPathFactory, bursts: list[int], num_files: int
) -> None:
    path = tmp_path_factory.mktemp("run") / "samples.jsonl"
    file = BoundedFile(path, max_bytes=len(line(10)) * 3, num_files=num_files)
    step = 9
    following = index_of(path)
    for num in bursts:
        for _ in range(num):
            step += 1
            file.write(line(step))
        following.refresh()
        fresh = index_of(path)
        assert steps(following) == steps(fresh)
        assert completions(following) == [f"c{kept}" for kept in range(step - len(following.entries) + 1, step + 1)]
    file.close()


@pytest.mark.parametrize("to", [2, 0])
def test_following_notices_that_a_resumed_run_cut_the_file(tmp_path: Path, to: int) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(b"".join(map(line, range(1, 6))))
    index = index_of(path)
    held = list(index.entries)
    resumed = Samples()
    resumed.setup(tmp_path, {}, to)
    resumed.close("failed")
    with path.open("ab") as file:
        for step in range(to + 1, 9):
            file.write(line(step, completion=f"again {step}"))
    index.refresh()
    assert steps(index) == list(range(1, 9))
    assert completions(index)[-1] == "again 8"
    assert completions(index)[to] == f"again {to + 1}"
    assert [entry.read().completion for entry in held] == [f"c{step}" for step in range(1, 6)]
    assert [index.group(entry) for entry in held] == [[entry] for entry in held]


def test_a_file_is_open_for_as_long_as_an_entry_of_it_is_held(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(line(1))
    index = index_of(path)
    (entry,) = index.entries
    path.unlink()
    assert (index.refresh(), index.entries) == (True, [])
    assert entry.read().completion == "c1"
    descriptor = Path(f"/proc/self/fd/{entry.file.file.fileno()}")
    assert descriptor.exists()
    del entry
    assert not descriptor.exists()


def test_the_group_of_a_sample_is_found_by_its_prompt(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    records = [(1, 7, 1), (1, 8, 0), (1, 7, 0), (2, 7, 0)]
    path.write_bytes(b"".join(line(step, prompt_id=prompt, sample=sample) for step, prompt, sample in records))
    index = index_of(path)
    found = index.group(index.entries[0])
    assert [(e.head.step, e.head.prompt_id, e.head.sample) for e in found] == [(1, 7, 0), (1, 7, 1)]


def test_a_large_file_is_indexed_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with path.open("wb") as file:
        for step in range(1, 20_001):
            file.write(line(step, completion="x" * 2000))
    tracemalloc.start()
    index = index_of(path)
    assert len(index.entries) == 20_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < path.stat().st_size / 3
