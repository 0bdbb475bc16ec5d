"""Digits: the share of the answer's digits that stand where they should."""

from __future__ import annotations

from areal_lit.contracts import Reward


class Digits(Reward):
    """Compare completion and answer digit by digit.

    Args:
        answer_field: the example's field with the right answer.
    """

    def __init__(self, *, answer_field: str = "answer") -> None:
        self.answer_field = answer_field

    def score(self, trajectory):
        answer = str(trajectory.prompt.fields[self.answer_field])
        text = trajectory.text.strip()
        right = sum(a == b for a, b in zip(answer, text, strict=False))
        return right / max(len(answer), len(text), 1)
