"""Bin packing of token counts: first-fit-decreasing and largest differencing. Plain integers, no torch."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from areal_lit.types import IntArray

Bins = list[list[int]]
"""Item indices per bin."""


def first_fit_decreasing(sizes: Sequence[int] | IntArray, capacity: int) -> Bins:
    """Few bins of at most ``capacity``: longest item first, each into the first bin it fits; O(n log n).

    A tree of largest remaining capacities finds that bin. Any-fit rules leave at most one bin half empty or
    more, which bounds the bins to be kept. Raises ValueError for an item longer than the capacity.
    """
    size = np.asarray(sizes, dtype=np.int64)
    if not size.size:
        return []
    if size.max() > capacity:
        raise ValueError(f"an item of size {int(size.max())} does not fit a bin of capacity {capacity}")
    leaves = 1 << int(2 * -(-int(size.sum()) // capacity)).bit_length()
    free = [capacity] * (2 * leaves)
    bins: Bins = [[] for _ in range(leaves)]
    order = np.argsort(-size, kind="stable")
    for item, need in zip(order.tolist(), size[order].tolist(), strict=True):
        node = 1
        while node < leaves:
            node *= 2
            if free[node] < need:
                node += 1
        bins[node - leaves].append(item)
        free[node] -= need
        while node > 1:
            node >>= 1
            left, right = free[2 * node], free[2 * node + 1]
            largest = left if left > right else right
            if free[node] == largest:
                break
            free[node] = largest
    return [b for b in bins if b]


def largest_differencing(sizes: Sequence[int] | IntArray, num_bins: int) -> Bins:
    """Exactly ``num_bins`` bins of nearly equal total (Karmarkar-Karp); O(n (log n + bins)).

    The two partial partitions of largest spread are merged, largest sum onto smallest, until one is left.
    No bin is empty when there are at least as many positive sizes as bins.
    """
    if num_bins < 1:
        raise ValueError(f"num_bins must be >= 1, got {num_bins}")
    size = np.asarray(sizes, dtype=np.int64).tolist()
    if num_bins == 1 or not size:
        return [list(range(len(size))), *([] for _ in range(num_bins - 1))]
    heap: list[tuple[int, int, list[tuple[int, list[int]]]]] = []
    for item, need in enumerate(size):
        # sums in descending order, with the items of each
        heap.append((-need, item, [(need, [item]), *((0, []) for _ in range(num_bins - 1))]))
    heapq.heapify(heap)
    while len(heap) > 1:
        _, _, first = heapq.heappop(heap)
        _, tie, second = heapq.heappop(heap)
        merged = [(a + b, _joined(x, y)) for (a, x), (b, y) in zip(first, reversed(second), strict=True)]
        merged.sort(key=lambda part: -part[0])
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], tie, merged))
    return [sorted(items) for _, items in heap[0][2]]


def _joined(first: list[int], second: list[int]) -> list[int]:
    """Both lists in one, extending the longer in place: every item moves O(log n) times."""
    if len(first) < len(second):
        first, second = second, first
    first.extend(second)
    return first


def pack_bins(sizes: Sequence[int] | IntArray, capacity: int, *, balanced: bool) -> Bins:
    """Bins of at most ``capacity``: few of them, or as few and of nearly equal totals when ``balanced``.

    Balancing starts at the fewest bins that could do; where no count up to first-fit-decreasing's has every bin
    within capacity, first-fit-decreasing's bins are returned, so it never takes more bins.
    """
    bins = first_fit_decreasing(sizes, capacity)
    if not balanced or len(bins) <= 1:
        return bins
    size = np.asarray(sizes, dtype=np.int64)
    for num_bins in range(-(-int(size.sum()) // capacity), len(bins) + 1):
        candidate = largest_differencing(size, num_bins)
        if max(int(size[b].sum()) for b in candidate) <= capacity:
            return candidate
    return bins
