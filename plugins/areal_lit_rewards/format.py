"""Format: the completion has the asked-for form, whatever it says."""

from __future__ import annotations

import re

from areal_lit.contracts import Reward
from areal_lit.types import Trajectory


class Format(Reward):
    """1 if the whole completion matches a regular expression, else 0.

    White space at both ends is ignored, and ``.`` matches line breaks.

    Args:
        pattern: the default asks for thoughts in ``<think>`` tags and then an answer.
    """

    scores_steps = False

    def __init__(self, *, pattern: str = r"<think>(?:(?!</?think>).)+</think>(?:(?!</?think>).)+") -> None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"pattern is not a regular expression ({error}), got {pattern!r}") from error
        self.pattern = pattern

    def score(self, trajectory: Trajectory) -> float:
        return float(re.fullmatch(self.pattern, trajectory.text.strip(), re.DOTALL) is not None)
