"""HH-RLHF: the prompt is what both sides share up to their last answer; what is no pair is refused or left out."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from areal_lit.testing import check_data, tiny_spec
from areal_lit.text import TextCodec
from areal_lit.types import Example
from areal_lit_data.hh_rlhf import HHRLHF

START = "\n\nHuman: hi\n\nAssistant: hello\n\nHuman: and?\n\nAssistant:"
PAIR = {"chosen": f"{START} yes.\n\nreally", "rejected": f"{START} no"}
EARLIER = {"chosen": PAIR["chosen"], "rejected": PAIR["rejected"].replace("hello", "help")}
"""Sides whose turns disagree before the last."""
HUMAN_LAST = {"chosen": PAIR["chosen"], "rejected": f"{START} no\n\nHuman: why"}
LONGER = {"chosen": PAIR["chosen"], "rejected": f"{START} no\n\nHuman: why\n\nAssistant: so"}
EMPTY = {"chosen": f"{START} yes", "rejected": START}


@pytest.fixture
def codec(tmp_path: Path) -> TextCodec:
    return TextCodec(tiny_spec(tmp_path / "model"))


def written(directory: Path, *rows: Any, suffix: str = ".jsonl") -> str:
    data = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    for split in ("train", "test"):
        (directory / f"{split}{suffix}").write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    return str(directory)


def loaded(data: HHRLHF, codec: TextCodec) -> Sequence[Example]:
    data.setup(codec)
    return data.train()["hh_rlhf"].examples


@pytest.mark.parametrize(("chat", "suffix"), [(False, ".jsonl"), (True, ".jsonl.gz")])
def test_keeps_the_contract(tmp_path: Path, codec: TextCodec, chat: bool, suffix: str) -> None:
    directory = written(tmp_path, PAIR, EMPTY, suffix=suffix)
    check_data(lambda: HHRLHF(directory=directory, chat=chat), codec)


def test_text_is_split_at_the_last_assistant_turn_and_nothing_is_lost(tmp_path: Path, codec: TextCodec) -> None:
    first, second = loaded(HHRLHF(directory=written(tmp_path, PAIR, EMPTY)), codec)
    assert first == Example(prompt=START, fields={"chosen": " yes.\n\nreally", "rejected": " no"})
    assert second.fields == {"chosen": " yes", "rejected": ""}


def test_turns_become_messages(tmp_path: Path, codec: TextCodec) -> None:
    (example,) = loaded(HHRLHF(directory=written(tmp_path, PAIR), chat=True), codec)
    turns = (("user", "hi"), ("assistant", "hello"), ("user", "and?"))
    assert example.prompt == tuple({"role": role, "content": content} for role, content in turns)
    assert example.fields == {"chosen": "yes.\n\nreally", "rejected": "no"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            EARLIER,
            r"line 2: the sides differ before their last answer: '.*' and '.*' at character 27; .*unusable: drop",
        ),
        (LONGER, "line 2: the sides differ before their last answer"),
        (HUMAN_LAST, r"line 2: a dialogue ends with an assistant turn, got '\\n\\nHuman: why'"),
        ({"chosen": "yes", "rejected": "no"}, r"line 2: a dialogue begins with '.*Human:', got 'yes'"),
        ({"chosen": PAIR["chosen"], "rejected": PAIR["chosen"]}, "which prefers nothing"),
        ({"chosen": PAIR["chosen"]}, "line 2: no column 'rejected'"),
        ({"chosen": PAIR["chosen"], "rejected": None}, "line 2: a side is one text, got NoneType"),
    ],
)
def test_rows_that_are_no_pairs_are_refused_or_left_out(
    tmp_path: Path, codec: TextCodec, caplog: pytest.LogCaptureFixture, row: dict[str, Any], message: str
) -> None:
    directory = written(tmp_path, PAIR, row, PAIR)
    for act in (lambda data: data.setup(codec), lambda data: data.preview()):
        with pytest.raises(ValueError, match=message):
            act(HHRLHF(directory=directory))
    assert len(HHRLHF(directory=directory, unusable="drop").preview()["hh_rlhf"].examples) == 2
    with caplog.at_level(logging.WARNING):
        assert [e.prompt for e in loaded(HHRLHF(directory=directory, unusable="drop"), codec)] == [START, START]
    assert "train.jsonl: left out 1 of 3 rows that are no pairs" in caplog.text


def test_limits_count_pairs(tmp_path: Path, codec: TextCodec) -> None:
    directory = written(tmp_path, EARLIER, PAIR, EMPTY, PAIR)
    data = HHRLHF(directory=directory, unusable="drop", max_examples=2, max_eval_examples=1, max_prompt_tokens=100)
    assert [e.fields["rejected"] for e in loaded(data, codec)] == [" no", ""]
    assert len(data.evaluation()["hh_rlhf"].examples) == 1


def test_data_without_any_pair_is_refused(tmp_path: Path, codec: TextCodec) -> None:
    data = HHRLHF(directory=written(tmp_path, EARLIER), unusable="drop")
    with pytest.raises(ValueError, match="none of its 1 rows is a pair; row 0: the sides differ"):
        data.setup(codec)
    with pytest.raises(ValueError, match="unusable must be raise or drop, got 'keep'"):
        HHRLHF(unusable="keep")  # type: ignore[arg-type]
