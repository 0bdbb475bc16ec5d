"""Which slots read the cache together, so that short sequences need not read as far as the longest.

Costs are counted in cached positions read, per layer. Shapes: n active slots.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from areal_lit_inference.transformers.slots import Span

SPAN_COST = 512
"""What one more span costs in fixed overhead: on a CPU as much as this many positions."""

SORT_SHARE = 0.2
"""Slots are sorted anew when spans of unsorted ones would read this much more than needed."""

SORT_EVERY = 8
"""Decode steps between two sorts at least: one sort costs about two steps' reads."""


def plan_spans(length_n: NDArray[np.int64], span_cost: int = SPAN_COST) -> list[Span]:
    """Consecutive spans of the slots, each as long as its longest sequence with the token being fed.

    A span is halved at its best place as long as that saves more than ``span_cost``.
    """
    return [
        Span(first=first, stop=stop, length=int(length_n[first:stop].max()) + 1)
        for first, stop in _split(length_n, 0, len(length_n), span_cost)
    ]


def _split(length_n: NDArray[np.int64], first: int, stop: int, span_cost: int) -> list[tuple[int, int]]:
    lengths = length_n[first:stop]
    count = len(lengths)
    whole = count * int(lengths.max())
    if count < 2 or whole - int(lengths.sum()) <= span_cost:
        return [(first, stop)]
    before = np.maximum.accumulate(lengths)[:-1]
    after = np.maximum.accumulate(lengths[::-1])[::-1][1:]
    left = np.arange(1, count)
    cost = left * before + (count - left) * after
    best = int(cost.argmin())
    if whole - int(cost[best]) <= span_cost:
        return [(first, stop)]
    middle = first + best + 1
    return [*_split(length_n, first, middle, span_cost), *_split(length_n, middle, stop, span_cost)]


def should_sort(length_n: NDArray[np.int64], spans: list[Span], span_cost: int = SPAN_COST) -> bool:
    """Whether sorting the slots by length, longest first, would save enough reads."""
    read = sum((span.stop - span.first) * span.length for span in spans)
    wasted = read - int(length_n.sum())
    return wasted > span_cost * len(spans) and wasted > SORT_SHARE * read
