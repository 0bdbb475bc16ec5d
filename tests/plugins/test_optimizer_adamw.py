"""AdamW: conformance, a hand-computed step, and what is not decayed."""

from __future__ import annotations

import pytest
import torch

from areal_lit.testing.optimizer import check_optimizer
from areal_lit_optimizers.adamw import AdamW


def test_conformance() -> None:
    check_optimizer(lambda: AdamW(lr=0.05, weight_decay=0.01))


def test_first_step_by_hand() -> None:
    """Adam's first step is lr x sign(gradient); the matrix is decayed by lr x weight_decay before, the norm is not."""
    matrix, norm = torch.nn.Parameter(torch.full((2, 2), 2.0)), torch.nn.Parameter(torch.ones(3))
    optimizer = AdamW(lr=0.1, weight_decay=0.5).build([matrix, norm])
    matrix.grad, norm.grad = torch.full((2, 2), 3.0), torch.full((3,), -4.0)
    optimizer.step()
    torch.testing.assert_close(matrix.detach(), torch.full((2, 2), 2.0 * (1 - 0.1 * 0.5) - 0.1))
    torch.testing.assert_close(norm.detach(), torch.full((3,), 1.1))


def test_only_norms_or_only_matrices() -> None:
    assert len(AdamW(lr=0.1).build([torch.nn.Parameter(torch.ones(3))]).param_groups) == 1
    assert len(AdamW(lr=0.1).build([torch.nn.Parameter(torch.ones(3, 3))]).param_groups) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"beta1": 1.0}, r"beta1 must be in \[0, 1\), got 1.0"), ({"weight_decay": -1.0}, "weight_decay must be >= 0")],
)
def test_refusals(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdamW(lr=0.1, **arguments)
