"""PromptStream: the endless (or ending) line of prompts of a run, with an exact position."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from areal_lit.contracts.data import Source
from areal_lit.outcomes import Outcomes
from areal_lit.seeds import stable_seed
from areal_lit.types import IntArray, Prompt

logger = logging.getLogger(__name__)


class PromptStream:
    """Prompts of one or several sources, mixed by weight and shuffled anew each epoch.

    Which prompt comes next depends only on the seed and on how many were drawn from each source: no random state is
    kept. Each source has epochs of its own; one that is through ends, the others go on.

    A source's sampler brings rows back between those that come in order: they count in the source's share and not in
    its epochs, which pass every row once as ever. Then the next prompt depends on the outcomes of earlier steps too.

    Args:
        sources: by name. Shares follow ``weight`` exactly and at any time (Webster's rule), not on average.
        seed: of the run.
        shuffle: False keeps the order of the data.
        num_epochs: passes over each source; None goes on for ever.
    """

    def __init__(
        self, sources: Mapping[str, Source], *, seed: int, shuffle: bool = True, num_epochs: int | None = None
    ) -> None:
        for name, source in sources.items():
            if len(source.examples) == 0:
                raise ValueError(f"data source {name!r} has no examples; remove it or check its filter")
            if not source.weight > 0:
                raise ValueError(f"weight of data source {name!r} must be > 0, got {source.weight}; remove it instead")
        if num_epochs is not None and num_epochs < 1:
            raise ValueError(f"num_epochs must be >= 1 or null (endless), got {num_epochs}")
        self.sources = dict(sources)
        self.seed = seed
        self.shuffle = shuffle
        self.num_epochs = num_epochs
        self._next_id = 0
        self._drawn = dict.fromkeys(self.sources, 0)
        self._returned: list[tuple[int, str, int, int]] = []
        self._orders: dict[str, tuple[int, IntArray]] = {}
        self._samplers = {name: source.sampler for name, source in sources.items() if source.sampler is not None}
        self._repeated = dict.fromkeys(self.sources, 0)
        self.outcomes = Outcomes(self._samplers)

    @property
    def source_names(self) -> list[str]:
        """Names of the sources, in the order given."""
        return list(self.sources)

    @property
    def is_finished(self) -> bool:
        """Whether ``next`` would return None."""
        return not self._returned and self._choose() is None

    def next(self) -> Prompt | None:
        """The next prompt: one given back if there is any, else a new one; None when the data ended."""
        if self._returned:
            return self._prompt(*heapq.heappop(self._returned))
        name = self._choose()
        if name is None:
            return None
        epoch, offset = divmod(self._drawn[name], len(self.sources[name].examples))
        row = self._repeat(name)
        if row is None:
            row = self._row(name, epoch, offset)
            self._drawn[name] += 1
        else:
            self._repeated[name] += 1
        prompt = self._prompt(self._next_id, name, row, epoch)
        self._next_id += 1
        return prompt

    def push_back(self, prompts: Iterable[Prompt]) -> None:
        """Give back prompts that were not consumed: they come first, in the order of their ids, which they keep."""
        prompts = list(prompts)
        self.outcomes.withdraw(prompts)
        for prompt in prompts:
            heapq.heappush(self._returned, _place(prompt))

    def state_dict(self, pending: Iterable[Prompt] = ()) -> dict[str, Any]:
        """The position, as plain JSON-able values.

        Args:
            pending: prompts that were drawn and not consumed; ``load_state_dict`` gives them back.
        """
        returned = sorted([*self._returned, *map(_place, pending)])
        position = {
            "next_id": self._next_id, "drawn": dict(self._drawn), "returned": [list(place) for place in returned],
            "examples": self._num_examples,
        }  # fmt: skip
        if not self._samplers:
            return position
        samplers = {name: dict(sampler.state_dict()) for name, sampler in self._samplers.items()}
        return {
            **position, "repeated": dict(self._repeated), "samplers": samplers, "outcomes": self.outcomes.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position. Raises ValueError when the sources are not those it was saved with.

        One that has more or fewer examples by now is told: its rows come in another order.
        A sampler that the state knows nothing of begins with nothing; what belonged to one that is gone is left out.
        """
        if set(state["drawn"]) != set(self.sources):
            raise ValueError(
                f"the checkpoint's data sources are {sorted(state['drawn'])}, the recipe's {sorted(self.sources)}; "
                "resume with the same sources or start a new run"
            )
        returned = [(int(i), str(name), int(row), int(epoch)) for i, name, row, epoch in state["returned"]]
        for _, name, row, _ in returned:
            if row >= len(self.sources[name].examples):
                raise ValueError(
                    f"the checkpoint has row {row} of data source {name!r} in flight, which now has only "
                    f"{len(self.sources[name].examples)} examples; resume with the data it was saved with"
                )
        self._tell_changes(state.get("examples", {}))
        self._next_id = int(state["next_id"])
        self._drawn = {name: int(state["drawn"][name]) for name in self.sources}
        self._returned = returned
        heapq.heapify(self._returned)
        self._repeated.update(state.get("repeated", {}))
        if "outcomes" in state:
            self.outcomes.load_state_dict(state["outcomes"])
        for name, saved in state.get("samplers", {}).items():
            if name in self._samplers:
                self._samplers[name].load_state_dict(saved)

    def _tell_changes(self, saved: Mapping[str, int]) -> None:
        for name, num in saved.items():
            if num != self._num_examples[name]:
                logger.warning(
                    "resume: data source %r had %d examples and now has %d; in this epoch rows may come twice or never",
                    name, num, self._num_examples[name],
                )  # fmt: skip

    @property
    def _num_examples(self) -> dict[str, int]:
        return {name: len(source.examples) for name, source in self.sources.items()}

    def _choose(self) -> str | None:
        """The source whose share is furthest behind; None when all are through."""
        best, best_time = None, float("inf")
        for name, source in self.sources.items():
            drawn = self._drawn[name]
            if self.num_epochs is not None and drawn >= self.num_epochs * len(source.examples):
                continue
            time = (drawn + self._repeated[name] + 0.5) / source.weight
            if time < best_time:
                best, best_time = name, time
        return best

    def _repeat(self, name: str) -> int | None:
        """The row that the source's sampler brings back, if it has one and that does."""
        sampler = self._samplers.get(name)
        if sampler is None:
            return None
        self.outcomes.tell()
        row = sampler.choose(stable_seed(self.seed, "sampler", name, self._drawn[name] + self._repeated[name]))
        if row is not None and not 0 <= row < len(self.sources[name].examples):
            raise ValueError(
                f"{type(sampler).__name__} chose row {row} of data source {name!r}, which has "
                f"{len(self.sources[name].examples)} examples; resume with the data it was saved with, or mend it"
            )
        return row

    def _row(self, name: str, epoch: int, offset: int) -> int:
        if not self.shuffle:
            return offset
        if name not in self._orders or self._orders[name][0] != epoch:
            generator = np.random.Generator(np.random.PCG64(stable_seed(self.seed, "order", name, epoch)))
            self._orders[name] = (epoch, generator.permutation(len(self.sources[name].examples)))
        return int(self._orders[name][1][offset])

    def _prompt(self, prompt_id: int, source: str, row: int, epoch: int) -> Prompt:
        example = self.sources[source].examples[row]
        return Prompt(prompt_id=prompt_id, source=source, row=row, epoch=epoch, example=example)


def _place(prompt: Prompt) -> tuple[int, str, int, int]:
    return (prompt.prompt_id, prompt.source, prompt.row, prompt.epoch)
