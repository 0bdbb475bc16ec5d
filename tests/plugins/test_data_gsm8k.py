"""GSM8K: final numbers, completions for supervised training, the original files where they are at hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from areal_lit.testing import check_data, tiny_spec
from areal_lit.text import TextCodec
from areal_lit_data.gsm8k import GSM8K, final_number

ORIGINAL = Path(__file__).parents[3] / "shared" / "data" / "gsm8k"
ROW = {
    "question": "Ann sells 500 cards at $2.50. How much is that?",
    "answer": "She gets 500*2.5 = $<<500*2.5=1250>>1250.\nSo:\n#### 1,250",
}


@pytest.fixture
def codec(tmp_path):
    return TextCodec(tiny_spec(tmp_path / "model"))


@pytest.fixture
def directory(tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(f"{json.dumps(ROW)}\n" * 3)
    return str(tmp_path)


def test_keeps_the_contract(directory, codec):
    check_data(lambda: GSM8K(directory=directory), codec)


def test_fields_of_a_problem(directory, codec):
    data = GSM8K(directory=directory, max_examples=2, max_eval_examples=1)
    data.setup(codec)
    example = data.train()["gsm8k"].examples[0]
    assert example.prompt == f"Question: {ROW['question']}\nAnswer:"
    assert example.fields == {
        "question": ROW["question"],
        "solution": ROW["answer"],
        "answer": "1250",
        "completion": " She gets 500*2.5 = $1250.\nSo:\n#### 1,250",
    }
    assert (len(data.train()["gsm8k"].examples), len(data.evaluation()["gsm8k"].examples)) == (2, 1)


def test_as_a_chat(directory, codec):
    data = GSM8K(directory=directory, template="{question}", chat=True, system="End with the number.")
    data.setup(codec)
    example = data.train()["gsm8k"].examples[0]
    assert [message["role"] for message in example.prompt] == ["system", "user"]
    assert example.fields["completion"].startswith("She gets")


@pytest.mark.parametrize(
    ("solution", "number"),
    [("#### 72", "72"), ("x\n#### 1,234,567", "1234567"), ("#### -5", "-5"), ("#### 0.25 \n", "0.25"), ("####3", "3")],
)
def test_final_number(solution, number):
    assert final_number(solution) == number


@pytest.mark.parametrize("solution", ["72", "#### many", "#### 7 apples", "#### 3\nor so"])
def test_a_solution_without_a_final_number_is_refused(solution):
    with pytest.raises(ValueError, match="ends in '#### number'"):
        final_number(solution)


def test_a_missing_directory_is_a_broken_rule():
    (rule,) = GSM8K(directory="nowhere").rules(SimpleNamespace(template_kwargs=None))
    assert "'nowhere' does not exist" in rule


@pytest.mark.skipif(not ORIGINAL.is_dir(), reason="the original files are not in shared/data/gsm8k beside the checkout")
def test_every_problem_of_the_original_files_has_a_number(codec):
    data = GSM8K(directory=str(ORIGINAL))
    data.setup(codec)
    sources = (data.train()["gsm8k"], data.evaluation()["gsm8k"])
    assert [len(source.examples) for source in sources] == [7473, 1319]
    for source in sources:
        for example in source.examples:
            float(example.fields["answer"])
            assert "<<" not in example.fields["completion"]
