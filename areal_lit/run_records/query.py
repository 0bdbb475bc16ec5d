"""Which samples to show and in which order, as one line: ``step:10.. reward:..0.5 sort:-length carry the one``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from areal_lit.names import closest
from areal_lit.run_records.reading import RecordsError
from areal_lit.run_records.records import Head
from areal_lit.run_records.sample_index import Entry, SampleIndex

NUMBERS: Mapping[str, Callable[[Head], float | None]] = {
    "step": lambda head: head.step,
    "reward": lambda head: head.reward,
    "length": lambda head: head.num_generated,
    "staleness": lambda head: head.staleness,
    "prompt": lambda head: head.prompt_id,
}
WORDS: Mapping[str, Callable[[Head], str]] = {
    "source": lambda head: head.source,
    "stop": lambda head: head.stop_reason,
}
SYNTAX = "step:10..20 reward:..0.5 length:100.. staleness:1.. prompt:7 source:NAME stop:length sort:-reward any text"


@dataclass(frozen=True, kw_only=True)
class Query:
    """A parsed query; the empty one is all samples in the order in which they were written.

    Args:
        ranges: bounds of numbers, both included.
        words: what must be equal.
        text: what prompt or completion must contain, whatever the case.
        sort: the number to sort by; empty keeps the order.
    """

    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    sort: str = ""
    is_descending: bool = False

    @classmethod
    def parse(cls, line: str) -> Query:
        """The query of a line. Words that are no ``key:value`` are searched for together, in order.

        Raises RecordsError for a range or an order that cannot be read.
        """
        ranges: dict[str, tuple[float, float]] = {}
        words: dict[str, str] = {}
        sort, text = "", []
        for term in line.split():
            key, colon, value = term.partition(":")
            if colon and key in NUMBERS:
                ranges[key] = _range(term, value)
            elif colon and key in WORDS:
                words[key] = value
            elif colon and key == "sort":
                sort = value
            else:
                text.append(term)
        if sort.removeprefix("-") not in {"", *NUMBERS}:
            raise RecordsError(f"cannot sort by {sort!r}; {closest(sort, NUMBERS)}")
        return cls(
            ranges=ranges, words=words, text=" ".join(text), sort=sort.removeprefix("-"),
            is_descending=sort.startswith("-"),
        )  # fmt: skip

    def select(self, index: SampleIndex) -> list[Entry]:
        """The entries of an index that match, in order. Only a search for text reads the records."""
        found = [entry for entry in index.entries if self._matches(entry.head)]
        if self.text:
            needle = self.text.casefold()
            found = [entry for entry in found if needle in _searched(entry)]
        return self._sorted(found) if self.sort else found

    def _matches(self, head: Head) -> bool:
        for key, (low, high) in self.ranges.items():
            value = NUMBERS[key](head)
            if value is None or not low <= value <= high:
                return False
        return all(WORDS[key](head) == word for key, word in self.words.items())

    def _sorted(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those without the number come last."""
        number = NUMBERS[self.sort]
        has_number = [entry for entry in entries if number(entry.head) is not None]
        rest = [entry for entry in entries if number(entry.head) is None]
        return sorted(has_number, key=lambda e: number(e.head) or 0.0, reverse=self.is_descending) + rest


def _searched(entry: Entry) -> str:
    sample = entry.read()
    return " ".join(f"{sample.prompt_text} {sample.completion}".casefold().split())


def _range(term: str, value: str) -> tuple[float, float]:
    low, dots, high = value.partition("..")
    try:
        first = float(low) if low else -math.inf
        last = (float(high) if high else math.inf) if dots else first
    except ValueError:
        raise RecordsError(f"{term!r} is no range; write {term.partition(':')[0]}:5, :5.., :..5 or :2..5") from None
    if not value or first > last:
        raise RecordsError(f"{term!r} is an empty range; write {term.partition(':')[0]}:5, :5.., :..5 or :2..5")
    return first, last
