"""Number: the last number that the completion names is the answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from areal_lit_rewards.answer import AnswerReward

MAX_DIGITS = 100
NUMBER = re.compile(
    r"""
    (?:(?<![\w.)])[-+\u2212])?                            # a sign, unless it stands between two operands: 7-3
    (?: \d{1,3}(?:,\d{3})+(?!\d) | \d+ | (?=\.\d) )       # 1,234 or 1234, or nothing before .5
    (?: \.\d+ )?
    (?: [eE][-+]?\d{1,3}(?!\d) | /\d+(?!\d|\.\d) )?         # 1e3, or 2/3
    """,
    re.VERBOSE | re.ASCII,
)


class Number(AnswerReward):
    """1 if the last number in the completion equals the answer, else 0.

    Reads signs, decimals, thousands separators (``1,234.5``), exponents (``1e3``) and fractions (``2/3``), compared
    exactly as fractions; units, currency and percent signs around a number are ignored. A completion without a
    number, or whose last number has more than 100 characters, scores 0; an answer that is not one number is unscored.

    Args:
        answer_field: the example's field with the answer; a list holds several right ones.
        answer_pattern: regular expression whose first group is the answer within the field, as
            ``####\\s*(.+)`` for original GSM8K solutions; None takes it whole.
        tolerance: largest absolute difference that still counts as equal.
    """

    def __init__(
        self, *, answer_field: str = "answer", answer_pattern: str | None = None, tolerance: float = 0.0
    ) -> None:
        super().__init__(answer_field=answer_field, answer_pattern=answer_pattern)
        if not tolerance >= 0:
            raise ValueError(f"tolerance must be >= 0, got {tolerance}")
        self.tolerance = tolerance

    def problem(self, answer: str) -> str:
        if only_number(answer) is not None:
            return ""
        return f"the answer {answer!r:.80} is not one number; set answer_pattern, or use exact_match"

    def is_right(self, text: str, answers: Sequence[str]) -> bool:
        numbers = [only_number(answer) for answer in answers]
        found = last_number(text)
        return found is not None and any(
            abs(found - number) <= Fraction(self.tolerance) for number in numbers if number is not None
        )


def last_number(text: str) -> Fraction | None:
    """The last number named in ``text``; None without one."""
    last = None
    for last in NUMBER.finditer(text):  # noqa: B007 - the last one is wanted
        pass
    return None if last is None else as_fraction(last[0])


def only_number(text: str) -> Fraction | None:
    """The number in an answer such as ``$1,234``; None if there is none or more than one."""
    found = NUMBER.findall(text)
    return as_fraction(found[0]) if len(found) == 1 else None


def as_fraction(text: str) -> Fraction | None:
    """The exact value; None for what is no number after all (1/0, endless digits)."""
    if len(text) > MAX_DIGITS:
        return None
    try:
        numerator, _, denominator = text.replace(",", "").replace("\u2212", "-").partition("/")
        return Fraction(numerator) / Fraction(denominator or 1)
    except (ValueError, ZeroDivisionError):
        return None
