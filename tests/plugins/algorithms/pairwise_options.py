"""Rows of options in which every two values of two options meet at least once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

Pair = tuple[str, int, str, int]


def pairwise(options: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Few rows, not the fewest: each takes up a pair that is still missing, and fills up with the most others."""
    order = {name: place for place, name in enumerate(options)}
    missing = {
        (a, i, b, j)
        for a, b in combinations(options, 2)
        for i in range(len(options[a]))
        for j in range(len(options[b]))
    }

    def pairs(row: Mapping[str, int]) -> Iterator[Pair]:
        for a, b in combinations(sorted(row, key=order.__getitem__), 2):
            yield a, row[a], b, row[b]

    rows = []
    while missing:
        a, i, b, j = min(missing)
        row = {a: i, b: j}
        for name in options:
            if name not in row:
                made = [sum(pair in missing for pair in pairs({**row, name: k})) for k in range(len(options[name]))]
                row[name] = made.index(max(made))
        missing.difference_update(pairs(row))
        rows.append({name: options[name][row[name]] for name in options})
    return rows
