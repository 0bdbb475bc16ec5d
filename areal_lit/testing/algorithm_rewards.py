"""Which way an algorithm moves, and what rewards as they really come do to it.

Shapes: T packed tokens, S segments.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from areal_lit.batching import pack
from areal_lit.testing.algorithm_case import COLUMNS_OF_NEED, AlgorithmCase, assert_same
from areal_lit.testing.toy import NEWEST_VERSION
from areal_lit.token_batch import Loss, weighted_sum
from areal_lit.types import Trajectory


def check_hostile_rewards(case: AlgorithmCase) -> None:
    """Non-finite, missing, equal, lone and nearly equal rewards leave gradients finite and bounded."""
    rng = np.random.default_rng(case.seed)
    rewards: list[list[float | None]] = [
        [float("nan"), 1.0, 0.0],
        [float("inf"), float("-inf"), 2.0],
        [None, None],
        [0.1] * 7,
        [1.0],
        [*[0.95] * 7, 0.0],
        [1.0, 2.0, 3.0],
    ]
    groups = []
    for prompt_id, values in enumerate(rewards):
        group = case.draw.group(rng, prompt_id, len(values))
        members = zip(group.trajectories, values, strict=True)
        marked = [replace(t, reward=v, unscored="broken" if v is None else "") for t, v in members]
        groups.append(replace(group, trajectories=tuple(marked)))
    batch = case.packed(groups)
    result = case.step(batch)
    for role, gradient in result.gradients.items():
        finite = bool(torch.isfinite(gradient).all())
        assert finite, f"the gradient of role {role!r} is not finite for NaN, infinite, missing, equal or lone rewards"
        size = float(gradient.abs().max())
        assert size < 1e3, f"the gradient of role {role!r} reaches {size:.3g} for nearly equal rewards; bound the scale"
    nothing = case.packed(groups[2:3])
    for role, gradient in case.step(nothing).gradients.items():
        assert not bool(gradient.any()), f"a step without any scored sample has a gradient for role {role!r}"


def check_unused_rewards(case: AlgorithmCase) -> None:
    """What says that it uses no rewards learns the same whatever they are."""
    groups = case.groups()
    others = [replace(group, trajectories=tuple(map(_otherwise_rewarded, group.trajectories))) for group in groups]
    first, second = (replace(case.step(case.packed(each)), metrics={}) for each in (groups, others))
    assert_same(first, second, "`uses_rewards` is False, and the gradient depends on rewards")


def check_direction(case: AlgorithmCase) -> None:
    """On-policy, a sample better than the rest of its group gets likelier, a worse one less likely.

    Two samples of each group have one loss token, their last.
    """
    rng = np.random.default_rng(case.seed)
    groups = []
    for prompt_id in range(3):
        group = case.draw.group(rng, prompt_id, 6)
        marked = [replace(t, reward=1.0 if t.sample % 2 else -1.0, turn_rewards=()) for t in group.trajectories]
        marked[:2] = map(_of_one_token, marked[:2])
        groups.append(replace(group, trajectories=tuple(marked)))
    batch = pack(groups, algorithm_columns=case.algorithm.columns).with_scalars(step=NEWEST_VERSION)
    needs = case.algorithm.needs
    if "topk" in needs:
        batch = batch.with_columns(**case.topk(batch))
    with torch.no_grad():
        outputs = case.model("policy")(batch)
    assert outputs.logprob_T is not None
    names = [name for need in needs - {"topk"} for name in COLUMNS_OF_NEED.get(need, ())]
    columns = dict.fromkeys(names, outputs.logprob_T.float())
    columns |= {n: torch.zeros(batch.size(batch.dims[n])) for n in ("value", "final_value") if n in columns}
    batch = batch.with_columns(logprob=outputs.logprob_T.float().where(batch["loss_mask"], 0.0), **columns)
    weighed = case.algorithm.weigh(case.algorithm.prepare(batch))
    leaf_T = outputs.logprob_T.clone().requires_grad_()
    loss: Loss = case.algorithm.objectives()["policy"](
        case.visible(replace(outputs, logprob_T=leaf_T), "policy"), weighed
    )
    total = weighted_sum(loss, weighed)
    assert total.requires_grad, "the policy's loss has no gradient: a log-prob was detached, or replaced by a column"
    (slope_T,) = torch.autograd.grad(total, leaf_T)
    slope_S, has_tokens_S = weighed.segment_sum(slope_T), weighed.loss_tokens_S > 0
    good, bad = has_tokens_S & (weighed["reward"] > 0), has_tokens_S & (weighed["reward"] < 0)
    assert bool((slope_S[good] < 0).all()), (
        "a positive advantage does not raise the log-prob: the loss has the wrong sign"
    )
    assert bool((slope_S[bad] > 0).all()), (
        "a negative advantage does not lower the log-prob: the loss has the wrong sign"
    )


def _otherwise_rewarded(trajectory: Trajectory) -> Trajectory:
    reward = None if trajectory.reward is None else 3.0 - 2.0 * trajectory.reward * (trajectory.sample + 1)
    turn_rewards = tuple(number - reward for number, reward in enumerate(trajectory.turn_rewards))
    return replace(trajectory, reward=reward, turn_rewards=turn_rewards)


def _of_one_token(trajectory: Trajectory) -> Trajectory:
    mask = trajectory.loss_mask.copy()
    mask[mask.nonzero()[0][:-1]] = False
    return replace(trajectory, loss_mask=mask)
