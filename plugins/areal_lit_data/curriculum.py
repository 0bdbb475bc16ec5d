"""Curriculum: prompts come back as long as something can be learned from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from areal_lit.contracts import DataModule, Preview, RowSampler, Source
from areal_lit.text import TextCodec
from areal_lit.validation import unscored_sources

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

TRIES = 64
"""So many refusals in a row say that next to nothing is left to learn from what is known."""


class Curriculum(DataModule):
    """Other data, of which the prompts that succeed sometimes are drawn more often than those that always or never do.

    A share of prompts comes in the data's order, epoch by epoch, as without a curriculum: so each is met, also before
    anything is known, and none is forgotten. The others were met before and come again, in proportion to p (1 - p),
    where p is the share of their samples that succeeded: the variance that group-relative advantages live on
    (learnability, arXiv 2408.15099; for language models, arXiv 2502.12272).

    Args:
        data: where the examples come from. Its evaluation sets stay as they are.
        exploration: share of prompts that comes in the data's order; it is higher while too little comes again.
        threshold: a sample with at least this reward succeeded.
        memory: what an earlier group of a prompt counts in p, relative to the one after it; 0 counts the last alone.
    """

    def __init__(
        self, *, data: DataModule, exploration: float = 0.5, threshold: float = 0.5, memory: float = 0.5
    ) -> None:
        if not 0 < exploration <= 1:
            raise ValueError(f"exploration must be in (0, 1], or prompts would never be met, got {exploration}")
        if not 0 <= memory < 1:
            raise ValueError(f"memory must be in [0, 1), got {memory}")
        self.data = data
        self.exploration = exploration
        self.threshold = threshold
        self.memory = memory

    def rules(self, trainer: Trainer) -> Iterable[str]:
        if trainer.algorithm.offline:
            yield (
                f"curriculum learns from rewards, and {type(trainer.algorithm).__name__} has none; name the data "
                "within it directly"
            )
        elif names := unscored_sources(trainer):
            yield (
                f"curriculum learns from rewards, and nothing scores {', '.join(names)}; name a reward, or the data "
                "within it directly"
            )

    def setup(self, codec: TextCodec) -> None:
        self.data.setup(codec)

    def train(self) -> Mapping[str, Source]:
        sources = {}
        for name, source in self.data.train().items():
            if source.sampler is not None:
                raise ValueError(f"source {name!r} has a {type(source.sampler).__name__} already; use one of the two")
            sampler = Learnability(exploration=self.exploration, threshold=self.threshold, memory=self.memory)
            sources[name] = replace(source, sampler=sampler)
        return sources

    def evaluation(self) -> Mapping[str, Source]:
        return self.data.evaluation()

    def evaluation_names(self) -> Sequence[str] | None:
        return self.data.evaluation_names()

    def preview(self) -> Mapping[str, Preview]:
        return self.data.preview()

    def unrewarded(self) -> Sequence[str]:
        return self.data.unrewarded()


class Learnability(RowSampler):
    """Brings back rows in proportion to p (1 - p), and none of them again before its outcome is known.

    Args:
        exploration, threshold, memory: as of ``Curriculum``.
    """

    def __init__(self, *, exploration: float, threshold: float, memory: float) -> None:
        self.exploration = exploration
        self.threshold = threshold
        self.memory = memory
        self._counts: dict[int, tuple[float, float]] = {}  # row -> samples that succeeded, all samples; discounted
        self._waiting: list[int] = []  # rows with 0 < p < 1 that were not brought back since their last outcome
        self._place: dict[int, int] = {}  # of each of them in the list

    def choose(self, seed: int) -> int | None:
        draw = Random(seed)
        if draw.random() < self.exploration or not self._waiting:
            return None
        # to accept a uniform draw with probability w is to draw in proportion to w, in constant time
        for _ in range(TRIES):
            row = draw.choice(self._waiting)
            succeeded, num = self._counts[row]
            if draw.random() < 4 * succeeded * (num - succeeded) / num**2:
                self._remove(row)
                return row
        return None

    def observe(self, row: int, rewards: Sequence[float]) -> None:
        if not rewards:
            return
        succeeded, num = (self.memory * count for count in self._counts.get(row, (0, 0)))
        succeeded += sum(reward >= self.threshold for reward in rewards)
        num += len(rewards)
        self._counts[row] = (succeeded, num)
        if row in self._place:
            self._remove(row)
        if 0 < succeeded < num:
            self._add(row)

    def state_dict(self) -> Mapping[str, Any]:
        return {"counts": [[row, *counts] for row, counts in self._counts.items()], "waiting": list(self._waiting)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._counts = {row: (succeeded, num) for row, succeeded, num in state["counts"]}
        self._waiting, self._place = [], {}
        for row in state["waiting"]:
            self._add(row)

    def _add(self, row: int) -> None:
        self._place[row] = len(self._waiting)
        self._waiting.append(row)

    def _remove(self, row: int) -> None:
        place, last = self._place.pop(row), self._waiting.pop()
        if last != row:
            self._waiting[place], self._place[last] = last, place
