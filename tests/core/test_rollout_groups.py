"""A group as its episodes leave it: the version at its completion, and branches that go on from known turns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from areal_lit.contracts import Workflow
from areal_lit.rollout.groups import GroupRunner
from areal_lit.rollout.plans import EpisodeServices, GroupPlan
from areal_lit.rollout.settings import Rollout
from areal_lit.testing import FakeBackend, tiny_spec
from areal_lit.testing.filter import make_group
from areal_lit.text import TextCodec
from areal_lit.types import Group, Prompt, Sampling, Trajectory
from areal_lit_filters.staleness import Staleness

DRAWN = make_group((1.0,)).trajectories[0]
"""Its tokens are of version 0."""


class Forks(Workflow):
    """Turns that go on from each other as told; meanwhile the engine gets new weights. Nothing is generated."""

    def __init__(self, *, parents: tuple[int, ...], services: EpisodeServices) -> None:
        self.parents = parents
        self.services = services

    async def run(self, prompt: Prompt, episode: Any) -> list[Trajectory]:
        self.services.version += 1
        return [
            replace(DRAWN, prompt=prompt, turn_ids=np.where(DRAWN.loss_mask, turn, -1), parent_turn=parent)
            for turn, parent in enumerate(self.parents)
        ]


async def run(directory: Path, parents: tuple[int, ...]) -> Group:
    """A group of two episodes."""

    async def score(_: Any, trajectories: list[Trajectory]) -> list[Trajectory]:
        return trajectories

    services = EpisodeServices(
        backend=FakeBackend(), codec=TextCodec(tiny_spec(directory)), score=score, seed=0, version=1
    )
    plan = GroupPlan(
        prompt=DRAWN.prompt, name="group", workflow=Forks(parents=parents, services=services), reward=None,
        sampling=Sampling(), samples=2, is_eval=False, services=services,
    )  # fmt: skip
    hooks = SimpleNamespace(rollout_error=lambda **_: "raise")
    return (await GroupRunner(Rollout(groups_per_step=1, samples_per_group=2), hooks).run(plan)).group


async def test_a_group_knows_the_version_at_its_completion(tmp_path: Path) -> None:
    group = await run(tmp_path, (-1, 0, 0))
    assert [(each.sample, each.parent_turn) for each in group.trajectories] == [
        (s, p) for s in (0, 1) for p in (-1, 0, 0)
    ]
    assert (group.version, group.oldest_version, group.age) == (3, 0, 3)
    assert Staleness(max_versions=3).accept(group)
    assert not Staleness(max_versions=2).accept(group)


async def test_branches_from_unknown_turns_are_the_workflows_fault(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"workflow Forks returned a trajectory that goes on from turn 1, but .* \[0\]"
    ):
        await run(tmp_path, (-1, 1))
