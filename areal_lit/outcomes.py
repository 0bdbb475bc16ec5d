"""Outcomes: what became of drawn rows, told to the samplers of their sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from areal_lit.contracts.row_sampler import RowSampler
from areal_lit.types import Prompt

Outcome = tuple[str, int, list[float]]
"""Source, row, rewards."""


class Outcomes:
    """Tells each outcome once, a step at a time, in order of prompt ids.

    So the draws of a step know of the steps before it and of nothing else, in whatever order its groups finish and
    wherever it is interrupted.

    Args:
        samplers: by source. Prompts of other sources are ignored.
    """

    def __init__(self, samplers: Mapping[str, RowSampler]) -> None:
        self._samplers = samplers
        self._of_step: dict[int, Outcome] = {}
        self._due: dict[int, Outcome] = {}

    def add(self, prompt: Prompt, rewards: Sequence[float]) -> None:
        """Note what became of a prompt in the current step."""
        if prompt.source in self._samplers:
            self._of_step[prompt.prompt_id] = (prompt.source, prompt.row, list(rewards))

    def close_step(self) -> None:
        """The current step's draws are over: from the next one on its outcomes count."""
        self._due |= self._of_step
        self._of_step = {}

    def withdraw(self, prompts: Iterable[Prompt]) -> None:
        """Forget what is not told yet of prompts that will be rolled out again."""
        for prompt in prompts:
            self._of_step.pop(prompt.prompt_id, None)
            self._due.pop(prompt.prompt_id, None)

    def tell(self) -> None:
        """Have the samplers know what is due, before they are asked for a row."""
        due, self._due = self._due, {}
        for _, (source, row, rewards) in sorted(due.items()):
            self._samplers[source].observe(row, rewards)

    def state_dict(self) -> dict[str, Any]:
        """What was not told yet, as plain JSON-able values."""
        return {"of_step": _listed(self._of_step), "due": _listed(self._due)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back ``state_dict``, of the sources that still have a sampler."""
        self._of_step, self._due = (self._unlisted(state[name]) for name in ("of_step", "due"))

    def _unlisted(self, entries: Iterable[Sequence[Any]]) -> dict[int, Outcome]:
        return {i: (source, row, rewards) for i, source, row, rewards in entries if source in self._samplers}


def _listed(outcomes: Mapping[int, Outcome]) -> list[list[Any]]:
    return [[prompt_id, *outcome] for prompt_id, outcome in outcomes.items()]
