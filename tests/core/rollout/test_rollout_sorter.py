"""When rejected groups are too many."""

from __future__ import annotations

import pytest

from areal_lit.plugins import create_plugin_manager
from areal_lit.rollout import Rollout
from areal_lit.rollout.sorter import Sorter
from areal_lit.rollout.verdict import Verdict


def sorter(limit: int) -> Sorter:
    settings = Rollout(groups_per_step=1, samples_per_group=1, max_rejected_groups=limit)
    verdict = Verdict(settings, filters=(), hooks=create_plugin_manager([]).hook)
    return Sorter(settings, verdict=verdict, keep_finished=lambda: False)


def test_a_consumed_batch_ends_a_row_of_rejections() -> None:
    groups = sorter(limit=3)
    for _ in range(4):
        groups.reject("stale")
        groups.reject("stale")
        groups.consume(0, step=0, by_id=False)
    assert {metric.name: metric.value for metric in groups.metrics(num_running=0)}["rollout/rejected/stale"] == 8


def test_one_too_many_is_told_once_as_the_rest_in_flight_has_nothing_to_add() -> None:
    groups = sorter(limit=2)
    groups.reject("dropped")
    with pytest.raises(RuntimeError, match=r"the last 2 groups were all rejected \(dropped 2\)"):
        groups.reject("dropped")
    groups.reject("dropped")
    assert groups.rejections.num_in_a_row == 3
