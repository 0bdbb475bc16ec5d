"""Arithmetic: right sums, disjoint splits, noise at its rate, nothing stored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_lit.testing import check_data, tiny_spec
from areal_lit.text import TextCodec
from areal_lit_data.arithmetic import Arithmetic, Permutation


def examples(task, split="train"):
    return getattr(task, split)()["arithmetic"].examples


def test_keeps_the_contract(tmp_path):
    check_data(lambda: Arithmetic(operators="+-*", noise=0.3), TextCodec(tiny_spec(tmp_path)))


@given(digits=st.integers(1, 4), operators=st.sampled_from(["+", "-", "*", "+-", "+-*"]), index=st.integers(0, 99_999))
def test_answers_are_right(digits, operators, index):
    example = examples(Arithmetic(digits=digits, operators=operators, num_eval=5))[index]
    expression = example.prompt.removesuffix("=")
    operator = next(character for character in expression if not character.isdigit())
    left, right = map(int, expression.split(operator))
    expected = {"+": left + right, "-": left - right, "*": left * right}[operator]
    assert operator in operators
    assert max(left, right) < 10**digits
    assert example.fields == {"answer": str(expected), "completion": str(expected)}


@given(size=st.integers(1, 700), seed=st.integers(0, 5))
def test_permutation_meets_every_number_once(size, seed):
    shuffled = Permutation(size, seed)
    assert sorted(map(shuffled, range(size))) == list(range(size))


def test_training_and_evaluation_share_no_problem_and_cover_all():
    task = Arithmetic(digits=1, operators="+-", num_eval=30, num_examples=170)
    train = [example.prompt for example in examples(task)]
    held_out = [example.prompt for example in examples(task, "evaluation")]
    assert len(set(train)) == 170
    assert len(set(held_out)) == 30
    assert not set(train) & set(held_out)


def test_order_depends_on_the_seed():
    first, second = (examples(Arithmetic(seed=seed))[:20] for seed in (0, 1))
    assert [example.prompt for example in first] != [example.prompt for example in second]


def test_noise_is_small_and_at_its_rate_and_not_in_evaluation():
    task = Arithmetic(noise=0.55)
    errors = [int(e.fields["completion"]) - int(e.fields["answer"]) for e in examples(task)[:4000]]
    wrong = [error for error in errors if error]
    assert len(wrong) / len(errors) == pytest.approx(0.55, abs=0.03)
    assert all(1 <= abs(error) <= 10 for error in wrong)
    assert all(int(e.fields["completion"]) >= 0 for e in examples(task)[:4000])
    assert all(e.fields["completion"] == e.fields["answer"] for e in examples(task, "evaluation"))


def test_noise_is_drawn_afresh_when_a_problem_comes_again():
    task = Arithmetic(digits=1, num_eval=10, num_examples=9000, noise=0.5)
    again = [examples(task)[index] for index in range(0, 9000, 90)]
    assert len({example.prompt for example in again}) == 1
    assert len({example.fields["completion"] for example in again}) > 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"digits": 0}, "digits must be in 1..9, got 0"),
        ({"operators": "+/"}, "operators must be"),
        ({"operators": "++"}, "each once"),
        ({"num_examples": 0}, "num_examples must be >= 1"),
        ({"noise": 1.5}, "noise must be in"),
        ({"digits": 1, "num_eval": 100}, "below the 100 problems"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Arithmetic(**arguments)


def test_pairs_have_a_right_and_a_wrong_completion() -> None:
    data = Arithmetic(pairs=True, num_eval=64, seed=3)
    for source in (*data.train().values(), *data.evaluation().values()):
        rejected = set()
        for example in source.examples[:64]:
            left, right = example.prompt.removesuffix("=").split("+")
            assert example.fields["chosen"] == str(int(left) + int(right)) == example.fields["answer"]
            assert example.fields["rejected"] != example.fields["chosen"]
            rejected.add(int(example.fields["rejected"]))
        assert len(rejected) > 32
        assert rejected <= set(range(199))
    assert "chosen" not in Arithmetic().train()["arithmetic"].examples[0].fields
