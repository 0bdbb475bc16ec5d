from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_lit.testing.reward import check_reward, completion
from areal_lit_rewards.number import Number, last_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("the answer is 42.", Fraction(42)),
        ("first 3, then 4", Fraction(4)),
        ("-7", Fraction(-7)),
        ("10-7", Fraction(7)),
        ("x = \u22121.50", Fraction(-3, 2)),
        ("$1,234,567.50 in all", Fraction("1234567.5")),
        ("12,34", Fraction(34)),
        (".5", Fraction(1, 2)),
        ("25%", Fraction(25)),
        ("it is 2/3.", Fraction(2, 3)),
        ("1.5/2", Fraction(3, 4)),
        ("1e3", Fraction(1000)),
        ("1e999999999", Fraction(999999999)),
        ("1/0", None),
        ("none", None),
        ("", None),
        ("9" * 101, None),
    ],
)
def test_the_last_number_is_read(text: str, number: Fraction | None) -> None:
    assert last_number(text) == number


@given(st.integers(-(10**12), 10**12), st.integers(0, 999), st.text(alphabet="abc ,;:\n", max_size=20))
def test_numbers_survive_formatting(whole: int, cents: int, words: str) -> None:
    value = Fraction(abs(whole) * 1000 + cents, 1000) * (-1 if whole < 0 else 1)
    written = f"{'-' if whole < 0 else ''}{abs(whole):,}.{cents:03d}"
    assert last_number(f"{words} 17 {written} {words}") == value


def test_equal_numbers_score_1() -> None:
    check_reward(
        Number(),
        [
            (completion("I get 1234.0 eggs", answer="$1,234"), 1.0),
            (completion("0.5", answer=0.5), 1.0),
            (completion("42 or 43", answer="42"), 0.0),
            (completion("no idea", answer="42"), 0.0),
            (completion("42", answer="forty-two"), None),
            (completion("42", answer="42 or 43"), None),
            (completion("42"), None),
        ],
    )


def test_tolerance_and_pattern() -> None:
    check_reward(
        Number(tolerance=0.01), [(completion("3.14", answer="3.1416"), 1.0), (completion("3.1", answer="3.1416"), 0.0)]
    )
    check_reward(Number(answer_pattern=r"####\s*(.+)"), [(completion("so 7", answer="1+6=7\n#### 7"), 1.0)])
    with pytest.raises(ValueError, match="tolerance must be >= 0, got -1"):
        Number(tolerance=-1)
