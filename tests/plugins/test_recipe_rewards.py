"""Rewards that the recipes on sums bring."""

from __future__ import annotations

import pytest

from areal_lit_recipes.sums import right_equations, right_so_far


@pytest.mark.parametrize(
    ("completion", "score"), [("", 0.5), ("8", 0.5), ("85", 1.0), ("85\n", 1.0), ("851", 0.0), ("5", 0.0), ("x", 0.0)]
)
def test_a_sum_is_judged_digit_by_digit(completion: str, score: float) -> None:
    assert right_so_far(completion, "85") == score


@pytest.mark.parametrize(
    ("line", "score"),
    [
        ("She has 3 + 4 = 7 apples and 7*2=14.", 1.0), ("3 + 4 = 8", 0.0), ("3+4=7, then 7-2=6", 0.0),
        ("So it costs $1,200 / 4 = $300.00", 1.0), ("10 / 3 = 3.33", 1.0), ("4 / 0 = 4", 0.0),
        ("She buys apples.", 0.5), ("2 × 3 = 6 and 6 ÷ 2 = 3", 1.0), ("", 0.5),
    ],
)  # fmt: skip
def test_a_line_is_judged_by_its_equations(line: str, score: float) -> None:
    assert right_equations(line) == score
