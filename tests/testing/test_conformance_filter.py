"""check_filter passes a sound filter and fails each planted bug."""

from __future__ import annotations

import numpy as np
import pytest

from areal_lit.contracts import Filter
from areal_lit.testing import check_filter

ACCEPTS, REJECTS = [(0.0, 1.0), (0.0, 1.0, None)], [(1.0, 1.0), (0.5,), ()]


class Spread(Filter):
    def accept(self, group):
        return len(set(group.rewards)) > 1


class Mean(Filter):
    """Divides by the number of scored members, which may be 0."""

    def accept(self, group):
        return sum(group.rewards) / len(group.rewards) < 1


class FirstAndLast(Filter):
    def accept(self, group):
        rewards = group.rewards
        return bool(rewards) and rewards[0] != rewards[-1]


class NumpyBool(Filter):
    def accept(self, group):
        return np.std([*group.rewards, 0.0]) > 0


class ForgetsToReturn(Filter):
    def accept(self, group):
        len(set(group.rewards)) > 1  # noqa: B015


class ComparesNone(Filter):
    def accept(self, group):
        return any(trajectory.reward > 0 for trajectory in group.trajectories)


class Edits(Spread):
    def accept(self, group):
        for trajectory in group.trajectories:
            trajectory.loss_mask[:] = False
        return super().accept(group)


class Never(Filter):
    def accept(self, group):
        return False


def test_a_sound_filter_passes():
    check_filter(Spread, accepts=ACCEPTS, rejects=REJECTS)


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (Mean, "ZeroDivisionError"),
        (FirstAndLast, "samples carry no order"),
        (NumpyBool, "must return True or False"),
        (ForgetsToReturn, "must return True or False, got None"),
        (ComparesNone, "TypeError"),
        (Edits, "it may only look"),
        (Never, "must be True, got False"),
    ],
)
def test_planted_bugs_fail(mutant, message):
    with pytest.raises(AssertionError, match=message):
        check_filter(mutant, accepts=ACCEPTS, rejects=REJECTS)


def test_an_accepting_filter_fails_what_must_be_rejected():
    with pytest.raises(AssertionError, match="must be False, got True"):
        check_filter(Spread, rejects=[(0.0, 1.0)])
