"""HuggingFace: the hub's loader on local files, with the columns of `jsonl`."""

from __future__ import annotations

import json

import pytest

from areal_lit.testing import check_data, tiny_spec
from areal_lit.text import TextCodec
from areal_lit.types import Example

pytest.importorskip("datasets", reason="needs the extra: pip install 'areal-lit[datasets]'")

from areal_lit_data.huggingface import HuggingFace

ROWS = [{"question": f"What is {n}+1?", "answer": str(n + 1)} for n in range(6)]


@pytest.fixture
def codec(tmp_path):
    return TextCodec(tiny_spec(tmp_path / "model"))


@pytest.fixture
def local(tmp_path, monkeypatch):
    """Arguments for a local dataset whose cache stays in the test's directory."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    path = tmp_path / "rows.json"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return {"path": "json", "data_files": {"train": [str(path)], "test": [str(path)]}}


def test_keeps_the_contract(local, codec):
    check_data(lambda: HuggingFace(**local, prompt="question", eval_splits={"few": "test[:2]"}), codec)


def test_columns_template_and_splits(local, codec):
    data = HuggingFace(
        **local, split="train[2:]", eval_splits={"few": "test[:2]"}, template="Q: {question}", fields={"gold": "answer"}
    )
    data.setup(codec)
    examples = data.train()["huggingface"].examples
    assert len(examples) == 4
    assert examples[0] == Example(prompt="Q: What is 2+1?", fields={"gold": "3"})
    assert len(data.evaluation()["few"].examples) == 2


def test_a_missing_column_names_the_dataset(local, codec):
    with pytest.raises(ValueError, match=r"json \[train\]: no column 'qestion'; did you mean question"):
        HuggingFace(**local, prompt="qestion").setup(codec)


def test_long_prompts_are_dropped(local, codec):
    data = HuggingFace(**local, prompt="question", max_prompt_tokens=3)
    with pytest.raises(ValueError, match="all 6 prompts are longer"):
        data.setup(codec)


def test_evaluation_only(local, codec):
    data = HuggingFace(**local, split=None, eval_splits={"all": "test"}, prompt="question")
    data.setup(codec)
    assert data.train() == {}
    assert list(data.evaluation()) == ["all"]


def test_lists_that_name_nothing_are_refused(local):
    with pytest.raises(ValueError, match="split is null and there are no eval_splits: nothing is read"):
        HuggingFace(**local, split=None)
    with pytest.raises(ValueError, match=r"data_files\.test must name at least one file, got \[\]"):
        HuggingFace(path="json", data_files={"train": ["a"], "test": []})


def test_an_unreachable_hub_names_the_way_out(codec):
    with pytest.raises(ConnectionError, match=r"'nobody/nothing'.*use local files"):
        HuggingFace(path="nobody/nothing").setup(codec)
