"""PreferenceJsonl: prompts and completions as text or chat messages; what is malformed is named with file and line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from areal_lit.testing import check_data, tiny_spec
from areal_lit.text import TextCodec
from areal_lit.types import Example
from areal_lit_data.preference_jsonl import PreferenceJsonl

USER = {"role": "user", "content": "2+3?"}
TEXT = {"prompt": "2+3=", "chosen": "5", "rejected": "6"}
CHAT = {"prompt": [USER], "chosen": [{"role": "assistant", "content": "5"}], "rejected": "6"}


@pytest.fixture
def codec(tmp_path: Path) -> TextCodec:
    return TextCodec(tiny_spec(tmp_path / "model"))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def write(*rows: Any, name: str = "pairs.jsonl") -> str:
        text = "".join(row if isinstance(row, str) else f"{json.dumps(row)}\n" for row in rows)
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return str(path)

    return write


def loaded(data: PreferenceJsonl, codec: TextCodec) -> Sequence[Example]:
    data.setup(codec)
    return data.train()["preferences"].examples


def test_keeps_the_contract(write: Callable[..., str], codec: TextCodec) -> None:
    path = write(TEXT, {**TEXT, "chosen": "05"})
    check_data(lambda: PreferenceJsonl(files=[path], eval_files={"held out": [path]}), codec)
    chats = write(CHAT, name="chats.jsonl")
    check_data(lambda: PreferenceJsonl(files=[chats], messages="prompt"), codec)


def test_text_and_chats_give_the_same_fields(write: Callable[..., str], codec: TextCodec) -> None:
    (text,) = loaded(PreferenceJsonl(files=[write(TEXT)], fields={}), codec)
    assert text == Example(prompt="2+3=", fields={"chosen": "5", "rejected": "6"})
    (chat,) = loaded(PreferenceJsonl(files=[write(CHAT)], messages="prompt", fields={}), codec)
    assert chat == Example(prompt=(USER,), fields={"chosen": "5", "rejected": "6"})


def test_columns_of_other_names_and_gzip(write: Callable[..., str], codec: TextCodec) -> None:
    path = write({"q": "2+3=", "good": "5", "bad": "6", "id": 7}, name="pairs.jsonl.gz")
    data = PreferenceJsonl(files=[path], prompt="q", chosen="good", rejected="bad", chat=True)
    (example,) = loaded(data, codec)
    assert example.prompt == ({"role": "user", "content": "2+3="},)
    assert {name: example.fields[name] for name in ("chosen", "rejected", "id")} == {
        "chosen": "5", "rejected": "6", "id": 7,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "arguments", "message"),
    [
        ([TEXT, "{]\n"], {}, r"pairs.jsonl, line 2: Expecting property name"),
        ([TEXT, {"prompt": "x", "chosen": "y"}], {}, "pairs.jsonl, line 2: no column 'rejected'"),
        ([{**TEXT, "rejected": 6}], {}, "line 1: column 'rejected' must hold text or a list of one assistant message"),
        ([{**TEXT, "rejected": "5"}], {}, "line 1: chosen and rejected are the same, '5'; leave the row out"),
        ([TEXT, {**TEXT, "chosen": CHAT["chosen"]}], {}, "line 2: column 'chosen' holds chat messages, but the prompt"),
        ([CHAT], {}, "column 'prompt' must hold text, got list; chat messages are named by messages"),
        ([TEXT], {"messages": "prompt"}, "line 1: column 'prompt' must hold a list of chat messages"),
        (
            [{**CHAT, "chosen": [USER, *CHAT["chosen"]]}], {"messages": "prompt"},
            "column 'chosen' must hold one assistant message, the answer to the prompt, got 2 messages",
        ),
        ([{**CHAT, "rejected": [USER]}], {"messages": "prompt"}, "must hold one assistant message"),
        (
            [{**CHAT, "rejected": [{"role": "assistant", "content": None}]}], {"messages": "prompt"},
            "column 'rejected': an assistant message has text as content, got None",
        ),
        (
            [{**CHAT, "prompt": [USER, {"role": "assistant", "content": "5"}]}], {"messages": "prompt"},
            "column 'prompt' ends with an assistant message, but it is the prompt",
        ),
    ],
)  # fmt: skip
def test_bad_rows_are_named(
    write: Callable[..., str], codec: TextCodec, rows: list[Any], arguments: dict[str, Any], message: str
) -> None:
    data = PreferenceJsonl(files=[write(*rows)], **arguments)
    with pytest.raises(ValueError, match=message):
        data.setup(codec)
    with pytest.raises(ValueError, match=message):
        data.preview()
