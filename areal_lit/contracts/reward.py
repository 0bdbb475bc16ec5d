"""Reward: how good a trajectory is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Sequence

from areal_lit.contracts.component import Component
from areal_lit.text import TextCodec
from areal_lit.types import Example, Scored, Trajectory, Unscored

Score = float | Scored | Unscored


class Reward(Component):
    """Scores trajectories. A plain ``def score`` runs in the reward pool (processes that can be killed);
    an ``async def score`` runs on the event loop and must not block.

    Args of subclasses must pickle: instances are sent to the pool's workers once.
    """

    @property
    def scores_steps(self) -> bool | None:
        """Whether scores come with ``steps``, for validation; None, the default, where that is not known beforehand."""
        return None

    def use_codec(self, codec: TextCodec) -> None:
        """Keep the policy's codec, if scoring looks at tokens; called before ``setup``. Does nothing by default."""

    def setup(self) -> None:
        """Load what scoring needs; called once in each process that scores."""

    @abstractmethod
    def score(self, trajectory: Trajectory) -> Score | Awaitable[Score]:
        """The reward, or ``Unscored`` when none can be had. NaN, infinities and exceptions count as unscored."""

    def check(self, example: Example) -> None:
        """Raise ValueError if no completion of an example could ever be scored well: a field it lacks, say.

        For validation: called with a few examples, without ``setup``; quick, no network. Checks nothing by default.
        """


class GroupReward(Reward):
    """A reward that needs all samples of a prompt at once (rankings, diversity)."""

    def score(self, trajectory: Trajectory) -> Score:
        """A group of one."""
        return self.score_group([trajectory])[0]

    @abstractmethod
    def score_group(self, trajectories: Sequence[Trajectory]) -> Sequence[Score]:
        """One score per trajectory, in order. Runs in the pool."""
