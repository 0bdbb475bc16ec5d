"""Numbers that an algorithm is given: what is not finite is refused, or leaves the gradient finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from algorithm_family import FAMILY

from areal_lit.contracts.algorithm import Algorithm
from areal_lit.recipes.schema import members, parameters_of
from areal_lit.testing.algorithm_case import AlgorithmCase
from areal_lit.testing.toy import RaggedGroups
from areal_lit_algorithms.distill import Distill
from areal_lit_algorithms.dpo import DPO
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.kl import adapted_weight
from areal_lit_algorithms.pieces.normalisation import Normaliser
from areal_lit_algorithms.pieces.rejection import Rejection
from areal_lit_algorithms.pieces.shaping import Overlong, Shaping
from areal_lit_algorithms.reward_model import RewardModel
from areal_lit_algorithms.sft import SFT

MAKERS: dict[str, Callable[..., Algorithm]] = {
    **FAMILY,
    "distill": partial(Distill, rl_weight=1.0, top_k=4, compare="top_k"),
    "distill_sampled": Distill,
    "dpo": DPO,
    "reward_model": RewardModel,
    "sft": SFT,
    "shaping": lambda **given: GRPO(reward_shaping=Shaping(**given)),
    "overlong": lambda **given: GRPO(reward_shaping=Shaping(overlong=Overlong(max_length=8, buffer=4, **given))),
    "reward_norm": lambda **given: GRPO(reward_norm=Normaliser(**given)),
    "rejection": lambda **given: GRPO(rejection=Rejection(**given)),
}
CLASSES: dict[str, type] = {
    "shaping": Shaping, "overlong": Overlong, "reward_norm": Normaliser, "rejection": Rejection,
}  # fmt: skip


def numbers() -> list[Any]:
    """Every argument that takes a number, of every maker."""
    classes = {name: CLASSES.get(name) or type(make()) for name, make in MAKERS.items()}
    return [
        pytest.param(MAKERS[name], argument, id=f"{name}-{argument}")
        for name, cls in classes.items()
        for argument, parameter in parameters_of(cls).items()
        if float in members(parameter.hint)
    ]


def gradients(algorithm: Algorithm) -> list[torch.Tensor]:
    draw = RaggedGroups(offline=algorithm.offline, pairs=isinstance(algorithm, DPO | RewardModel))
    case = AlgorithmCase(algorithm=algorithm, draw=draw, seed=0)
    return list(case.step(case.packed(case.groups())).gradients.values())


@pytest.mark.parametrize(("make", "argument"), numbers())
def test_a_number_that_is_not_finite_is_refused_or_harms_nothing(make: Callable[..., Algorithm], argument: str) -> None:
    with pytest.raises(ValueError, match=r"\bnan\b"):
        make(**{argument: math.nan})
    for value in (math.inf, -math.inf):
        try:
            algorithm = make(**{argument: value})
        except ValueError:
            continue
        found = gradients(algorithm)
        assert all(bool(gradient.isfinite().all()) for gradient in found)
        assert any(bool(gradient.any()) for gradient in found), "nothing would be learned"


def test_a_divergence_that_is_not_finite_leaves_the_weight_as_it_is() -> None:
    for kl in (math.nan, math.inf, -math.inf):
        assert adapted_weight(0.5, kl, target=0.1, gain=0.1) == 0.5


@pytest.mark.parametrize("gain", [5.0, 0.0, -0.1])
def test_the_controller_keeps_the_sign_of_its_weight_and_its_direction(gain: float) -> None:
    with pytest.raises(ValueError, match=rf"kl_gain must be in \(0, 5\), .*got {gain}"):
        GRPO(kl_gain=gain)
    assert 0 < adapted_weight(0.5, 0.0, target=0.1, gain=4.9) < 0.5
