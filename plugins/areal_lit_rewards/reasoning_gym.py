"""Reasoning-gym's own verifiers (extra ``reasoning-gym``)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from areal_lit.contracts import Reward
from areal_lit.types import Trajectory, Unscored

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

INSTALL = "the package reasoning-gym is not installed; run: pip install 'areal-lit[reasoning-gym]'"


class ReasoningGym(Reward):
    """The score, from 0 to 1, that the task's own verifier gives; use it with the data `reasoning_gym`.

    Args:
        answer_tag: the answer stands between ``<answer>`` and ``</answer>``, the last pair counting; a completion
            without them scores what the verifier gives no answer. None takes the whole completion.
    """

    scores_steps = False

    def __init__(self, *, answer_tag: str | None = "answer") -> None:
        self.answer_tag = answer_tag

    def rules(self, trainer: Trainer) -> Iterable[str]:
        return () if importlib.util.find_spec("reasoning_gym") else (INSTALL,)

    def setup(self) -> None:
        if importlib.util.find_spec("reasoning_gym") is None:
            raise ImportError(INSTALL)

    def score(self, trajectory: Trajectory) -> float | Unscored:
        from reasoning_gym.utils import extract_answer

        fields = trajectory.prompt.fields
        if missing := {"dataset", "entry"} - fields.keys():
            return Unscored(
                reason=f"the example has no {sorted(missing)}, only {sorted(fields)}; use the data reasoning_gym"
            )
        text = trajectory.text.strip()
        answer = text if self.answer_tag is None else extract_answer(text, tag_name=self.answer_tag)
        return float(verifier(fields["dataset"])(answer=answer, entry=fields["entry"]))


@cache
def verifier(dataset: str) -> Callable[..., Any]:
    """``score_answer`` of a task. Raises ValueError for a task that reasoning-gym does not have."""
    from reasoning_gym import get_score_answer_fn

    found: Callable[..., Any] = get_score_answer_fn(dataset)
    return found
