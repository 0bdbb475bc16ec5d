"""check_filter: the conformance suite of filters."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace

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
    make: Callable[[], Filter], *, accepts: Sequence[Rewards | Group] = (), rejects: Sequence[Rewards | Group] = ()
) -> None:
    """Raise AssertionError unless the filter judges every kind of group, by its members and not by their order.

    ::

        def test_filter():
            check_filter(MyFilter, accepts=[(0.0, 1.0)], rejects=[(1.0, 1.0)])

    Args:
        make: constructs the filter.
        accepts: groups that must be accepted: from ``make_group``, or the rewards (None: unscored) it is to have.
        rejects: groups that must be rejected.
    """
    check_component(make, "filter")
    for group in map(_group, (*AWKWARD, *accepts, *rejects)):
        verdict, members = _judge(make(), group), group.trajectories
        for shifted in range(1, len(members)):
            turned = replace(group, trajectories=(*members[shifted:], *members[:shifted]))
            require(
                _judge(make(), turned) == verdict,
                f"a group with {_told(group)} is judged {verdict}, with {_told(turned)} it is not; samples carry no "
                "order",
            )
    for expected, groups in ((True, accepts), (False, rejects)):
        for group in map(_group, groups):
            verdict = _judge(make(), group)
            require(verdict is expected, f"{_told(group)}: accept() must be {expected}, got {verdict}")


def make_group(
    rewards: Rewards, *, prompt_id: int = 0, num_tokens: int | Sequence[int] = 4, age: int | None = None
) -> Group:
    """A complete group with these rewards; None is an unscored member.

    Args:
        num_tokens: of each member, or of all, one of the prompt included.
        age: versions between its oldest token and its completion.
    """
    lengths = [num_tokens] * len(rewards) if isinstance(num_tokens, int) else num_tokens
    prompt = Prompt(prompt_id=prompt_id, source="test", row=prompt_id, epoch=0, example=Example(prompt="1+1="))
    trajectories = [
        Trajectory(
            token_ids=np.arange(length),
            loss_mask=np.arange(length) > 0,
            logprobs=np.where(np.arange(length) > 0, -1.0, 0.0).astype(np.float32),
            versions=np.where(np.arange(length) > 0, 0, -1),
            prompt=prompt,
            text="2",
            reward=reward,
            unscored="" if reward is not None else "no verdict",
            sample=sample,
        )
        for sample, (reward, length) in enumerate(zip(rewards, lengths, strict=True))
    ]
    return Group(prompt=prompt, trajectories=tuple(trajectories), version=age)


def _group(given: Rewards | Group) -> Group:
    return given if isinstance(given, Group) else make_group(given)


def _told(group: Group) -> str:
    return f"rewards {tuple(trajectory.reward for trajectory in group.trajectories)}"


def _judge(judge: Filter, group: Group) -> bool:
    before = pickle.dumps(group)
    try:
        verdict = judge.accept(group)
    except Exception as error:  # whatever a foreign filter raises here is the finding, and is chained
        raise AssertionError(
            f"accept() raised {type(error).__name__}: {error} on a group with {_told(group)}; unscored members "
            "are None, and group.rewards, which leaves them out, may be empty"
        ) from error
    require(isinstance(verdict, bool), f"accept() must return True or False, got {verdict!r} for {_told(group)}")
    require(pickle.dumps(group) == before, f"accept() changed the group with {_told(group)}; it may only look")
    return verdict
