"""Exact match: the completion is the answer, letter by letter."""

from __future__ import annotations

from collections.abc import Sequence

from areal_lit_rewards.answer import AnswerReward


class ExactMatch(AnswerReward):
    """1 if the completion equals the answer (or one of several), else 0.

    Args:
        answer_field: the example's field with the answer; a list holds several right ones.
        answer_pattern: regular expression whose first group is the answer within the field; None takes it whole.
        strip: ignore white space at both ends.
        ignore_case: compare case-folded.
    """

    def __init__(
        self,
        *,
        answer_field: str = "answer",
        answer_pattern: str | None = None,
        strip: bool = True,
        ignore_case: bool = False,
    ) -> None:
        super().__init__(answer_field=answer_field, answer_pattern=answer_pattern)
        self.strip = strip
        self.ignore_case = ignore_case

    def is_right(self, text: str, answers: Sequence[str]) -> bool:
        return self._normal(text) in map(self._normal, answers)

    def _normal(self, text: str) -> str:
        text = text.strip() if self.strip else text
        return text.casefold() if self.ignore_case else text
