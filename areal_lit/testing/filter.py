"""check_filter: the conformance suite of filters."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence

import numpy as np

from areal_lit.contracts import Filter
from areal_lit.testing.component import check_component, require
from areal_lit.types import Example, Group, Prompt, Trajectory

Rewards = Sequence[float | None]

AWKWARD: tuple[Rewards, ...] = (
    (0.0, 1.0), (1.0, 0.0, 0.0, 1.0), (1.0, 1.0, 1.0), (0.0, 0.0), (0.5,), (-2.0, 3.5, 0.25), (0.1 + 0.2, 0.3),
    (1e9, -1e9), (None, 1.0, 0.0), (None, None), (None, 1.0), (),
)  # fmt: skip


def check_filter(
    make: Callable[[], Filter], *, accepts: Sequence[Rewards] = (), rejects: Sequence[Rewards] = ()
) -> None:
    """Raise AssertionError unless the filter judges every kind of group, by its members and not by their order.

    ::

        def test_filter():
            check_filter(MyFilter, accepts=[(0.0, 1.0)], rejects=[(1.0, 1.0)])

    Args:
        make: constructs the filter.
        accepts: rewards (None: unscored) of groups that must be accepted.
        rejects: of groups that must be rejected.
    """
    check_component(make, "filter")
    for rewards in (*AWKWARD, *accepts, *rejects):
        verdict = _judge(make(), make_group(rewards))
        for shifted in range(1, len(rewards)):
            turned = (*rewards[shifted:], *rewards[:shifted])
            require(
                _judge(make(), make_group(turned)) == verdict,
                f"a group with rewards {tuple(rewards)} is judged {verdict}, in another order {turned} it is not; "
                "samples carry no order",
            )
    for expected, groups in ((True, accepts), (False, rejects)):
        for rewards in groups:
            verdict = _judge(make(), make_group(rewards))
            require(verdict is expected, f"rewards {tuple(rewards)}: accept() must be {expected}, got {verdict}")


def make_group(rewards: Rewards, *, prompt_id: int = 0, num_tokens: int = 4) -> Group:
    """A complete group with these rewards; None is an unscored member."""
    prompt = Prompt(prompt_id=prompt_id, source="test", row=prompt_id, epoch=0, example=Example(prompt="1+1="))
    trajectories = [
        Trajectory(
            token_ids=np.arange(num_tokens),
            loss_mask=np.arange(num_tokens) > 0,
            logprobs=np.where(np.arange(num_tokens) > 0, -1.0, 0.0).astype(np.float32),
            versions=np.where(np.arange(num_tokens) > 0, 0, -1),
            prompt=prompt,
            text="2",
            reward=reward,
            unscored="" if reward is not None else "no verdict",
            sample=sample,
        )
        for sample, reward in enumerate(rewards)
    ]
    return Group(prompt=prompt, trajectories=tuple(trajectories))


def _judge(judge: Filter, group: Group) -> bool:
    rewards = tuple(trajectory.reward for trajectory in group.trajectories)
    before = pickle.dumps(group)
    try:
        verdict = judge.accept(group)
    except Exception as error:  # whatever a foreign filter raises here is the finding, and is chained
        raise AssertionError(
            f"accept() raised {type(error).__name__}: {error} on a group with rewards {rewards}; unscored members "
            "are None, and group.rewards, which leaves them out, may be empty"
        ) from error
    require(isinstance(verdict, bool), f"accept() must return True or False, got {verdict!r} for rewards {rewards}")
    require(pickle.dumps(group) == before, f"accept() changed the group with rewards {rewards}; it may only look")
    return verdict
