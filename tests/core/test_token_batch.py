"""The packed batch's own arithmetic."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from areal_lit.token_batch import CORE_COLUMNS, Loss, TokenBatch, masked_metric, weighted_sum
from areal_lit.types import Reduction


def batch(**columns: torch.Tensor) -> TokenBatch:
    base = TokenBatch(
        columns={
            "token": torch.tensor([1, 2, 3, 4, 5]),
            "segment": torch.tensor([0, 0, 2, 2, 2]),
            "length": torch.tensor([2, 0, 3]),
            "atom": torch.tensor([0, 0, 1]),
            "loss_mask": torch.tensor([False, True, False, True, True]),
            "group": torch.tensor([40, 40, 7]),
        },
        dims={**CORE_COLUMNS, "mine": "A"},
        num_atoms=2,
    )
    return base.with_columns(**columns)


def test_sums_and_means_per_segment_and_atom() -> None:
    x_T = torch.tensor([100.0, 2.0, float("nan"), 4.0, 6.0])
    assert batch().segment_mean(x_T).tolist() == [2.0, 0.0, 5.0]
    assert batch().segment_sum(torch.ones(5)).tolist() == [2.0, 0.0, 3.0]
    assert batch().atom_sum(torch.tensor([1.0, 2.0, 4.0])).tolist() == [3.0, 4.0]
    assert batch().to_tokens(torch.tensor([1, 2, 3])).tolist() == [1, 1, 3, 3, 3]
    assert batch().loss_tokens_S.tolist() == [1, 0, 2]
    first, second, third = batch().group_index_S.tolist()
    assert first == second != third


def test_columns_must_be_declared_and_fit() -> None:
    assert batch(mine=torch.zeros(2, 3))["mine"].shape == (2, 3)
    with pytest.raises(ValueError, match="'other' is not declared"):
        batch(other=torch.zeros(5))
    with pytest.raises(ValueError, match="dimension A and needs 2 rows"):
        batch(mine=torch.zeros(5))
    with pytest.raises(KeyError, match="'reward' is declared but not filled"):
        batch()["reward"]
    with pytest.raises(KeyError, match="'nothing' is not declared"):
        batch()["nothing"]


def test_weighted_sum_ignores_what_has_no_weight() -> None:
    values = torch.tensor([float("nan"), 2.0, float("inf"), 3.0, 4.0], requires_grad=True)
    weighed = batch(token_weight=torch.tensor([0.0, 0.5, 0.0, 1.0, 0.0]))
    total = weighted_sum(Loss(values=values), weighed)
    assert total.item() == 4.0
    (gradient,) = torch.autograd.grad(total, values)
    assert gradient.tolist() == [0.0, 0.5, 0.0, 1.0, 0.0]


def test_a_weight_column_is_one_that_fill_silences() -> None:
    assert Loss(values=torch.ones(5), weight="critic_weight").weight_column == "critic_weight"
    with pytest.raises(ValueError, match=r"must end in _weight.*got 'importance'"):
        Loss(values=torch.ones(5), weight="importance")


def test_masked_metrics_merge_exactly() -> None:
    x, mask = torch.tensor([1.0, 5.0, 9.0]), torch.tensor([True, True, False])
    parts = [masked_metric("a", x[i : i + 1], mask[i : i + 1]) for i in range(3)]
    assert parts[0].merge(parts[1]).merge(parts[2]).value == masked_metric("a", x, mask).value == 3.0
    assert masked_metric("a", x, mask, "max").value == 5.0
    nothing = torch.zeros(3, dtype=torch.bool)
    none = masked_metric("a", x, nothing, "max")
    assert none.merge(masked_metric("a", x, mask, "max")).value == 5.0
    values = {reduction: masked_metric("a", x, nothing, reduction).value for reduction in get_args(Reduction)}
    assert values.pop("sum") == 0.0
    assert all(math.isnan(value) for value in values.values())
