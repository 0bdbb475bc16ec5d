"""Jsonl: columns, templates and chats; what is malformed is named with file and line."""

from __future__ import annotations

import json
import logging

import pytest

from areal_lit.testing import check_data, tiny_spec
from areal_lit.text import TextCodec
from areal_lit.types import Example
from areal_lit_data.jsonl import Jsonl

ROWS = [
    {"question": "What is 2+3?", "final": 5, "level": "easy"},
    {"question": "What is 40+2?", "final": 42, "level": "hard"},
]


@pytest.fixture
def codec(tmp_path):
    return TextCodec(tiny_spec(tmp_path / "model"))


@pytest.fixture
def write(tmp_path):
    def write(rows, name="rows.jsonl"):
        path = tmp_path / name
        path.write_text("".join(row if isinstance(row, str) else f"{json.dumps(row)}\n" for row in rows))
        return str(path)

    return write


def loaded(module, codec):
    module.setup(codec)
    return module.train()["jsonl"].examples


def test_keeps_the_contract(write, codec):
    path = write(ROWS)
    check_data(lambda: Jsonl(files=[path], eval_files={"held out": [path]}, prompt="question"), codec)


def test_a_prompt_column_keeps_all_columns_as_fields(write, codec):
    examples = loaded(Jsonl(files=[write(ROWS)], prompt="question"), codec)
    assert list(examples) == [Example(prompt=row["question"], fields=row) for row in ROWS]


def test_a_template_and_named_fields(write, codec):
    data = Jsonl(files=[write(ROWS)], template="Q ({level}): {question}\nA:", fields={"answer": "final"})
    assert loaded(data, codec)[1] == Example(prompt="Q (hard): What is 40+2?\nA:", fields={"answer": 42})


def test_doubled_braces_are_text(write, codec):
    assert loaded(Jsonl(files=[write(ROWS)], template="{{}} {question}"), codec)[0].prompt == "{} What is 2+3?"


def test_text_as_a_chat_with_a_system_message(write, codec):
    examples = loaded(Jsonl(files=[write(ROWS)], prompt="question", chat=True, system="be brief"), codec)
    assert examples[0].prompt == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "What is 2+3?"},
    )


def test_messages_end_in_a_completion(write, codec):
    user, assistant = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
    data = Jsonl(files=[write([{"chat": [user, assistant], "id": 1}])], messages="chat", system="be brief")
    (example,) = loaded(data, codec)
    assert example.prompt == ({"role": "system", "content": "be brief"}, user)
    assert example.fields == {"id": 1, "completion": "hello"}


def test_files_come_in_order_of_patterns_then_names(write, tmp_path, codec):
    for name in ("b", "a", "z"):
        write([{"prompt": name}], f"{name}.jsonl")
    examples = loaded(Jsonl(files=[str(tmp_path / "z.jsonl"), str(tmp_path / "*.jsonl")]), codec)
    assert [example.prompt for example in examples] == ["z", "a", "b"]


def test_several_evaluation_sets_and_no_training(write, codec):
    data = Jsonl(files=[], eval_files={"one": [write(ROWS)], "two": [write(ROWS[:1], "t.jsonl")]}, prompt="question")
    data.setup(codec)
    assert data.train() == {}
    assert {name: len(source.examples) for name, source in data.evaluation().items()} == {"one": 2, "two": 1}


def test_long_prompts_are_dropped_and_counted(write, codec, caplog):
    rows = [{"prompt": "1" * length} for length in (3, 40, 5, 41)]
    with caplog.at_level(logging.WARNING):
        examples = loaded(Jsonl(files=[write(rows)], max_prompt_tokens=10), codec)
    assert [example.prompt for example in examples] == ["111", "11111"]
    assert "dropped 2 of 4 prompts longer than 10 tokens" in caplog.text


def test_limits_count_what_is_kept(write, codec):
    rows = [{"prompt": "1" * length} for length in (40, 3, 41, 5, 6)]
    path = write(rows)
    data = Jsonl(files=[path], eval_files={"e": [path]}, max_prompt_tokens=10, max_examples=2, max_eval_examples=1)
    data.setup(codec)
    assert [example.prompt for example in data.train()["jsonl"].examples] == ["111", "11111"]
    assert len(data.evaluation()["e"].examples) == 1


def test_a_limit_without_a_length_filter(write, codec):
    examples = loaded(Jsonl(files=[write(ROWS)], prompt="question", max_examples=1), codec)
    assert len(examples) == 1
    with pytest.raises(IndexError):
        examples[1]


@pytest.mark.parametrize(
    ("rows", "arguments", "message"),
    [
        ([ROWS[0], "{'question': 1}\n"], {"prompt": "question"}, "rows.jsonl, line 2: Expecting property name"),
        (
            [ROWS[0], "\n", "[1]\n"],
            {"prompt": "question"},
            "rows.jsonl, line 3: each line must be a JSON object, got list",
        ),
        ([ROWS[0], {"final": 1}], {"prompt": "question"}, "rows.jsonl, line 2: no column 'question'"),
        (ROWS, {"prompt": "qestion"}, "line 1: no column 'qestion'; did you mean question"),
        (ROWS, {"template": "{question} {lvl}"}, "no column 'lvl'; did you mean level"),
        (ROWS, {"prompt": "question", "fields": {"answer": "fnal"}}, "no column 'fnal'; did you mean final"),
        (ROWS, {"prompt": "final"}, "column 'final' must hold text, got int"),
        (ROWS, {"messages": "question"}, "must hold a list of chat messages"),
        ([{"m": [{"role": "user"}]}], {"messages": "m"}, "has role and content"),
        ([{"m": [{"role": "assistant", "content": "x"}]}], {"messages": "m"}, "nothing before it"),
        ([], {}, "holds no rows"),
        ([{"prompt": "1" * 50}], {"max_prompt_tokens": 3}, "all 1 prompts are longer than max_prompt_tokens=3"),
    ],
)
def test_bad_rows_are_named(write, codec, rows, arguments, message):
    with pytest.raises(ValueError, match=message):
        Jsonl(files=[write(rows)], **arguments).setup(codec)


def test_a_missing_file_is_named(codec):
    with pytest.raises(ValueError, match=r"no file matches 'nowhere/\*.jsonl'"):
        Jsonl(files=["nowhere/*.jsonl"]).setup(codec)


def test_other_encodings_are_named(tmp_path, codec):
    (tmp_path / "latin.jsonl").write_bytes('{"prompt": "é"}\n'.encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin.jsonl: not UTF-8"):
        Jsonl(files=[str(tmp_path / "latin.jsonl")]).setup(codec)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"files": "rows.jsonl"}, "put it in brackets"),
        (
            {"files": [], "prompt": "a", "template": "{a}"},
            "one of prompt, messages and template, got prompt and template",
        ),
        ({"files": [], "system": "be brief"}, "set chat: true"),
        ({"files": [], "messages": "m", "chat": True}, "a chat already"),
        ({"files": [], "template": "no column"}, "needs column names in braces"),
        ({"files": [], "template": "{a.__class__}"}, r"got \{a.__class__\}"),
        ({"files": [], "template": "{a"}, "write {{ and }}"),
        ({"files": [], "max_examples": 0}, "max_examples must be >= 1, got 0"),
        ({"files": []}, r"files must name at least one file, got \[\], and there are no eval_files"),
        ({"files": ["a"], "eval_files": {"x": []}}, r"eval_files\.x must name at least one file, got \[\]; leave the"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Jsonl(**arguments)
