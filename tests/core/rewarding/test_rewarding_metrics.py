"""What rewards report: every event once, under its own name."""

from __future__ import annotations

from pathlib import Path

from reward_parts import Sleepy, metric, running, texts

from areal_lit.rewarding.metrics import RewardCounters


def test_events_are_counted_until_they_are_taken() -> None:
    counters = RewardCounters()
    counters.add_calls(2, 3.0)
    counters.add_calls(1, 0.5)
    counters.add_retry()
    for _ in range(2):
        counters.add_killed_worker()
    for kind in ("timeout", "crash", "timeout"):
        counters.add_unscored(kind)
    for num in (3, 5, 1):
        counters.note_queue(num)
    assert {metric.name: metric.value for metric in counters.take()} == {
        "reward/unscored": 3,
        "reward/unscored_unscored": 0,
        "reward/unscored_error": 0,
        "reward/unscored_invalid": 0,
        "reward/unscored_timeout": 2,
        "reward/unscored_crash": 1,
        "reward/retries": 1,
        "reward/killed_workers": 2,
        "reward/seconds": 3.5 / 3,
        "reward/queue": 5,
    }
    assert [metric.sum for metric in counters.take()] == [0] * 10


async def test_a_worker_that_is_given_up_is_counted(tmp_path: Path) -> None:
    reward = Sleepy()
    with running(reward, tmp_path, in_process=True, timeout_s=0.05, max_attempts=1) as scorer:
        (scored,) = await scorer.score(reward, texts("one"))
        assert scored.unscored == "timeout: no result within 0.05 s"
        assert metric(scorer, "reward/killed_workers") == 1
