from __future__ import annotations

from areal_lit.testing.reward import check_reward, completion
from areal_lit_rewards.exact_match import ExactMatch


def test_the_completion_is_the_answer() -> None:
    check_reward(
        ExactMatch(),
        [
            (completion(" 42\n", answer="42"), 1.0),
            (completion("42", answer=42), 1.0),
            (completion("42.", answer="42"), 0.0),
            (completion("Yes", answer="yes"), 0.0),
            (completion("no", answer=["yes", "no"]), 1.0),
            (completion("42"), None),
            (completion("42", answer=None), None),
            (completion("42", answer=[]), None),
        ],
    )


def test_white_space_and_case_are_options() -> None:
    check_reward(ExactMatch(strip=False), [(completion(" 42", answer="42"), 0.0), (completion("4", answer="4"), 1.0)])
    check_reward(ExactMatch(ignore_case=True), [(completion("STRASSE", answer="straße"), 1.0)])


def test_the_field_is_an_option() -> None:
    check_reward(
        ExactMatch(answer_field="label"), [(completion("a", label="a"), 1.0), (completion("a", answer="a"), None)]
    )
