"""Bin packing against its definitions on random sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_lit.packing import first_fit_decreasing, largest_differencing, pack_bins

sizes = st.lists(st.integers(1, 50), min_size=0, max_size=60)


def naive_first_fit_decreasing(items: list[int], capacity: int) -> list[list[int]]:
    bins: list[list[int]] = []
    for item in sorted(range(len(items)), key=lambda i: (-items[i], i)):
        for members in bins:
            if sum(items[i] for i in members) + items[item] <= capacity:
                members.append(item)
                break
        else:
            bins.append([item])
    return bins


@given(sizes, st.integers(50, 120))
def test_first_fit_decreasing_is_what_it_says(items: list[int], capacity: int) -> None:
    assert first_fit_decreasing(items, capacity) == naive_first_fit_decreasing(items, capacity)


@given(sizes, st.integers(1, 9))
def test_largest_differencing_uses_every_item_once_and_every_bin(items: list[int], num_bins: int) -> None:
    bins = largest_differencing(items, num_bins)
    assert len(bins) == num_bins
    assert sorted(i for b in bins for i in b) == list(range(len(items)))
    assert sum(bool(b) for b in bins) == min(num_bins, len(items))


def test_largest_differencing_beats_greedy() -> None:
    # longest-first onto the least loaded gives 17 and 13 here
    totals = [sum([8, 7, 6, 5, 4][i] for i in b) for b in largest_differencing([8, 7, 6, 5, 4], 2)]
    assert sorted(totals) == [14, 16]
    totals = [
        sum([4, 5, 6, 7, 8, 9, 10, 11][i] for i in b) for b in largest_differencing([4, 5, 6, 7, 8, 9, 10, 11], 4)
    ]
    assert totals == [15, 15, 15, 15]


@given(sizes, st.integers(50, 120))
def test_balanced_bins_fit_and_are_no_more(items: list[int], capacity: int) -> None:
    few, balanced = (pack_bins(items, capacity, balanced=b) for b in (False, True))
    assert sorted(i for b in balanced for i in b) == list(range(len(items)))
    assert all(sum(items[i] for i in b) <= capacity for b in balanced)
    assert len(balanced) <= len(few)


def test_balancing_evens_out_the_bins() -> None:
    few, balanced = (pack_bins([5] * 6, 20, balanced=b) for b in (False, True))
    assert [len(b) for b in few] == [4, 2]
    assert [len(b) for b in balanced] == [3, 3]


def test_lognormal_lengths_use_the_budget() -> None:
    draws = np.random.default_rng(0).lognormal(size=5_000)
    lengths = np.clip(draws / draws.mean() * 256, 1, 1024).astype(np.int64)
    bins = first_fit_decreasing(lengths, 1024)
    assert lengths.sum() / (len(bins) * 1024) >= 0.95


def test_refuses_what_cannot_fit() -> None:
    with pytest.raises(ValueError, match="size 11 does not fit a bin of capacity 10"):
        first_fit_decreasing([3, 11], 10)
    with pytest.raises(ValueError, match="num_bins must be >= 1, got 0"):
        largest_differencing([1], 0)
