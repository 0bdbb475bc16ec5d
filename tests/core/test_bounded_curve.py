"""A curve keeps what was given while it is short, and its means when it is long."""

from __future__ import annotations

import statistics
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_lit.bounded_curve import BoundedCurve


def test_a_short_curve_is_exact():
    curve = BoundedCurve(10)
    for step, value in ((0, 1.5), (3, -2.0), (4, 0.25)):
        curve.add(step, value)
    steps, values = curve.points()
    assert list(steps) == [0, 3, 4]
    assert list(values) == [1.5, -2.0, 0.25]


def test_a_value_given_again_replaces_the_one_before():
    curve = BoundedCurve(10)
    for value in (1.0, 5.0, 3.0):
        curve.add(7, value)
    assert [list(column) for column in curve.points()] == [[7], [3.0]]


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(-1e3, 1e3)), min_size=1, max_size=400), st.integers(1, 20))
def test_a_long_curve_keeps_its_mean_in_bounded_memory(points, capacity):
    curve, step, given_points = BoundedCurve(capacity), 0, []
    for ahead, value in points:
        step += ahead
        curve.add(step, value)
        given_points.append((step, value))
        assert len(curve) < 2 * capacity
    expected = next(means for means in means_of_neighbours(given_points) if len(means) <= len(curve))
    for index, column in enumerate(curve.points()):
        assert list(column) == pytest.approx([mean[index] for mean in expected], abs=1e-6)


def means_of_neighbours(points):
    """Mean step and value of the points within 1, 2, 4, ... steps from each multiple of that number on."""
    width = 1
    while True:
        groups = [list(group) for _, group in groupby(points, key=lambda point: point[0] // width)]
        yield [tuple(map(statistics.fmean, zip(*group, strict=True))) for group in groups]
        width *= 2
