"""Aggregations by hand: two groups, an empty completion, a masked token."""

from __future__ import annotations

import pytest
from algorithm_batches import make_batch

from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.aggregation import Aggregation, token_weights

MASKS = [[1, 1, 1], [1, 0], [0], [1, 1]]


@pytest.mark.parametrize(
    ("aggregation", "max_length", "expected"),
    [
        ("token_mean", None, [[1 / 6] * 3, [1 / 6, 0], [0], [1 / 6] * 2]),
        ("sequence_mean", None, [[1 / 9] * 3, [1 / 3, 0], [0], [1 / 6] * 2]),
        ("group_mean", None, [[1 / 8] * 3, [1 / 8, 0], [0], [1 / 4] * 2]),
        ("sequence_sum", None, [[1 / 3] * 3, [1 / 3, 0], [0], [1 / 3] * 2]),
        ("constant", 10, [[1 / 30] * 3, [1 / 30, 0], [0], [1 / 30] * 2]),
    ],
)
def test_weights(aggregation: Aggregation, max_length: int | None, expected: list[list[float]]) -> None:
    batch = make_batch(GRPO(), [1, 1, 2, 2], [0.0] * 4, MASKS)
    weights = token_weights(batch, aggregation, max_length=max_length)
    assert weights.tolist() == pytest.approx([x for row in expected for x in (0.0, *row)])


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "sequence_sum", "group_mean"])
def test_nothing_to_train_weighs_nothing(aggregation: Aggregation) -> None:
    batch = make_batch(GRPO(), [1, 1], [None, None])
    assert token_weights(batch, aggregation).tolist() == [0.0] * 6


def test_max_length_belongs_to_constant() -> None:
    with pytest.raises(ValueError, match="belongs to aggregation 'constant'"):
        GRPO(aggregation="constant")
    with pytest.raises(ValueError, match="belongs to aggregation 'constant'"):
        GRPO(max_length=8)
    with pytest.raises(ValueError, match="max_length must be >= 1, got 0"):
        GRPO(aggregation="constant", max_length=0)
    batch = make_batch(GRPO(), [1], [0.0])
    with pytest.raises(ValueError, match="got 'median'"):
        token_weights(batch, "median")  # type: ignore[arg-type]
