"""What algorithms make of a batch: what cannot be trained on is told with its algorithm before any rank sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from areal_lit.run.algorithm_results import prepared, weighed
from areal_lit.testing.algorithm_case import AlgorithmCase
from areal_lit.testing.toy import RaggedGroups
from areal_lit.token_batch import TokenBatch
from areal_lit_algorithms.grpo import GRPO

Warp = Callable[[TokenBatch], Any]


class Warped(GRPO):
    """GRPO with something done to what it prepares or weighs."""

    def __init__(self, *, prepare: Warp = lambda batch: batch, weigh: Warp = lambda batch: batch) -> None:
        super().__init__(decoupled=False, old="behaviour")
        self.warps = {"prepare": prepare, "weigh": weigh}

    def prepare(self, batch: TokenBatch) -> Any:
        return self.warps["prepare"](super().prepare(batch))

    def weigh(self, minibatch: TokenBatch) -> Any:
        return self.warps["weigh"](super().weigh(minibatch))


def result(algorithm: GRPO) -> TokenBatch:
    case = AlgorithmCase(algorithm=algorithm, draw=RaggedGroups(), seed=0)
    return weighed(algorithm, prepared(algorithm, case.packed(case.groups())))


def spoilt(name: str, value: float, *, trained: bool = True) -> Warp:
    """One entry replaced, the last that is trained on or the last that is not."""

    def warp(batch: TokenBatch) -> TokenBatch:
        column = batch[name].clone()
        column[(batch["loss_mask"] == trained).nonzero()[-1]] = value
        return batch.with_columns(**{name: column})

    return warp


def test_a_sound_algorithm_is_left_alone_and_may_take_tokens_out() -> None:
    plain = result(Warped())
    assert plain["loss_mask"].sum() > 1
    assert torch.equal(plain["advantage"], result(GRPO(decoupled=False, old="behaviour"))["advantage"])
    fewer = result(Warped(prepare=spoilt("loss_mask", False)))
    assert fewer["loss_mask"].sum() == plain["loss_mask"].sum() - 1
    assert result(Warped(prepare=spoilt("advantage", float("nan"), trained=False)))["loss_mask"].any()


@pytest.mark.parametrize(
    ("warps", "says"),
    [
        ({"prepare": lambda batch: None}, "prepare must return a TokenBatch, got NoneType"),
        ({"weigh": lambda batch: dict(batch.columns)}, "weigh must return a TokenBatch, got dict"),
        ({"prepare": spoilt("loss_mask", True, trained=False)}, "prepare added 1 tokens to loss_mask"),
        ({"weigh": spoilt("loss_mask", True, trained=False)}, "weigh added 1 tokens to loss_mask"),
        ({"prepare": spoilt("advantage", float("nan"))}, "prepare gave 1 NaN in column 'advantage'"),
        ({"weigh": spoilt("token_weight", float("nan"))}, "weigh gave 1 values in 'token_weight' that are not finite"),
        ({"weigh": spoilt("token_weight", float("inf"))}, "weigh gave 1 values in 'token_weight' that are not finite"),
        ({"weigh": spoilt("token_weight", 0.5, trained=False)}, "weigh gave 1 tokens outside loss_mask .* a weight"),
    ],
)
def test_what_cannot_be_trained_on_is_told_with_its_algorithm(warps: dict[str, Warp], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"Warped \(no distribution\): {says}"):
        result(Warped(**warps))
