"""Rewards that compare a completion with an answer of the data; without one they have none to give."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from areal_lit.contracts import Reward
from areal_lit.types import Example, Trajectory, Unscored


class NoAnswer(LookupError):
    """The example has no answer to compare with, so there is no reward, rather than one of 0."""


class AnswerReward(Reward):
    """Base of rewards that know the right answer: 1 for it, 0 for another, none where there is nothing to compare with.

    Args:
        answer_field: the example's field with the answer; a list holds several right ones.
        answer_pattern: regular expression whose first group is the answer within the field, as
            ``####\\s*(.+)`` for original GSM8K solutions; None takes the whole field.
    """

    scores_steps = False

    def __init__(self, *, answer_field: str = "answer", answer_pattern: str | None = None) -> None:
        if answer_pattern is not None and re.compile(answer_pattern).groups < 1:
            raise ValueError(f"answer_pattern needs a group around the answer, got {answer_pattern!r}; add parentheses")
        self.answer_field = answer_field
        self.answer_pattern = answer_pattern

    def check(self, example: Example) -> None:
        """Raise ValueError unless the example has answers that a completion can be compared with."""
        try:
            answers = self._answers(example.fields)
        except NoAnswer as error:
            raise ValueError(str(error)) from error
        for answer in answers:
            if problem := self.problem(answer):
                raise ValueError(problem)

    def problem(self, answer: str) -> str:
        """Why no completion can be compared with an answer, and the way out; empty if one can."""
        return ""

    @abstractmethod
    def is_right(self, text: str, answers: Sequence[str]) -> bool:
        """Whether a completion gives one of the answers, each of which can be compared with."""

    def score(self, trajectory: Trajectory) -> float | Unscored:
        try:
            answers = self._answers(trajectory.prompt.fields)
        except NoAnswer as error:
            return Unscored(reason=str(error))
        for answer in answers:
            if problem := self.problem(answer):
                return Unscored(reason=problem)
        return float(self.is_right(trajectory.text, answers))

    def _answers(self, fields: Mapping[str, Any]) -> tuple[str, ...]:
        given = fields.get(self.answer_field)
        if given is None:
            raise NoAnswer(f"the example has no field {self.answer_field!r}, only {sorted(fields)}; set answer_field")
        several = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
        answers = tuple(self._extract(str(each)) for each in several)
        if not answers:
            raise NoAnswer(f"the example's field {self.answer_field!r} is empty")
        return answers

    def _extract(self, text: str) -> str:
        if self.answer_pattern is None:
            return text
        found = re.search(self.answer_pattern, text)
        if found is None or found[1] is None:
            raise NoAnswer(f"answer_pattern {self.answer_pattern!r} does not occur in {text!r:.120}")
        return found[1]
