"""Sizes: a count that no machine has is refused where it is given, before anything is allocated or started for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from areal_lit.evaluation import Evaluation
from areal_lit.rewarding import Rewarding
from areal_lit.roles import Role
from areal_lit.rollout import Rollout
from areal_lit.types import ModelSpec
from areal_lit.weight_sync import WeightSync
from areal_lit_data.arithmetic import Arithmetic
from areal_lit_data.reasoning_gym import ReasoningGym, Task
from areal_lit_inference.transformers import Transformers
from areal_lit_single.strategy import Single

HUGE = 10**30


def rollout(**given: Any) -> Rollout:
    return Rollout(**{"groups_per_step": 4, "samples_per_group": 8, **given})


def role(**given: Any) -> Role:
    return Role(model=ModelSpec(path="m"), strategy=Single(), **given)


def reasoning_gym(**given: Any) -> ReasoningGym:
    return ReasoningGym(tasks={"leg_counting": Task()}, **given)


@pytest.mark.parametrize(
    ("build", "key"),
    [
        (rollout, "groups_per_step"),
        (rollout, "samples_per_group"),
        (rollout, "max_staleness"),
        (rollout, "max_concurrent"),
        (role, "num_ranks"),
        (role, "num_threads"),
        (role, "num_gpus"),
        (Rewarding, "num_workers"),
        (Evaluation, "samples"),
        (WeightSync, "probe_prompts"),
        (Transformers, "max_slots"),
        (Transformers, "num_threads"),
        (Transformers, "num_gpus"),
        (Arithmetic, "num_examples"),
        (reasoning_gym, "size"),
        (reasoning_gym, "eval_size"),
    ],
)
@pytest.mark.parametrize("value", [HUGE, 2_000_000_000])
def test_a_size_that_no_machine_has_is_refused(build: Callable[..., Any], key: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"{key}.* must be (<=|at most) [\d_]+.*more than any machine holds"):
        build(**{key: value})


def test_the_bounds_leave_room_for_the_largest_runs() -> None:
    assert rollout(groups_per_step=8_192, samples_per_group=64, max_staleness=16).concurrency == 139_264
    assert role(num_ranks=16_384).num_ranks == 16_384
    assert Rewarding(num_workers=4_096).num_workers == 4_096


def test_not_a_number_is_no_size() -> None:
    with pytest.raises(ValueError, match="num_gpus must be >= 0, got nan"):
        role(num_gpus=float("nan"))
