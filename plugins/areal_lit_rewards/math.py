"""Math: the completion's final expression is equivalent to the answer (Math-Verify)."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from areal_lit.types import Example
from areal_lit_rewards.answer import AnswerReward

DELIMITERS = re.compile(r"\$|\\\(|\\\[|\\boxed")
COMMAND = re.compile(r"\\(?:text|mathrm|mbox|textbf)\s*\{[^{}]*\}|\\[A-Za-z]+")
WORD = re.compile(r"[A-Za-z]{4,}")
"""Prose; shorter runs of letters are variables and units."""


class Math(AnswerReward):
    """1 if the completion's final expression, LaTeX or plain, is mathematically the answer, else 0.

    The answer is one expression (``72``, ``2\\pi``, ``x^2+1``, ``5 \\text{ cm}``); one in words is unscored.
    Expressions that take for ever (``9^{9^{9^9}}``, deep nesting) end with their worker and stay unscored.

    Args:
        answer_field: the example's field with the answer; a list holds several right ones.
        answer_pattern: regular expression whose first group is the answer within the field, as
            ``####\\s*(.+)`` for original GSM8K solutions; None takes it whole.
        float_rounding: decimals to which numbers are compared.
    """

    def __init__(
        self, *, answer_field: str = "answer", answer_pattern: str | None = None, float_rounding: int = 6
    ) -> None:
        super().__init__(answer_field=answer_field, answer_pattern=answer_pattern)
        if float_rounding < 0:
            raise ValueError(f"float_rounding must be >= 0, got {float_rounding}")
        self.float_rounding = float_rounding

    def setup(self) -> None:
        """Parse once: the first parse compiles the grammar, which should not count as a reward's time."""
        _silence_warnings()
        parse_text("$1$")

    def check(self, example: Example) -> None:
        _silence_warnings()
        super().check(example)

    def problem(self, answer: str) -> str:
        if parse_answer(answer):
            return ""
        return f"the answer {answer!r:.80} is no mathematical expression; use exact_match for such data"

    def is_right(self, text: str, answers: Sequence[str]) -> bool:
        from math_verify import verify

        found = parse_text(text)
        return any(
            verify(gold, found, float_rounding=self.float_rounding, timeout_seconds=None, raise_on_error=True)
            for gold in map(parse_answer, answers)
        )


def _silence_warnings() -> None:
    """Each process would warn that the library's own time limit is off. The pool's limit stands in for it: the
    library's needs signals, which do nothing while one long integer operation runs.
    """
    for module in ("parser", "grader"):
        logging.getLogger(f"math_verify.{module}").setLevel(logging.ERROR)


def parse_text(text: str) -> list[Any]:
    """What Math-Verify finds in ``text``: expression and source; empty if there is none. Raises instead of guessing."""
    from math_verify import parse

    found: list[Any] = parse(text, parsing_timeout=None, raise_on_error=True)
    return found


@lru_cache(maxsize=4096)
def parse_answer(answer: str) -> list[Any]:
    """The expressions in an answer; empty for prose. Kept, as the samples of a group share their answer.

    An answer without delimiters is taken as LaTeX: read as free text, ``2\\pi`` would be the number 2.
    """
    if not DELIMITERS.search(answer):
        if WORD.search(COMMAND.sub("", answer)):
            return []
        answer = f"${answer}$"
    found = parse_text(answer)
    return [] if all(isinstance(each, str) for each in found) else found
