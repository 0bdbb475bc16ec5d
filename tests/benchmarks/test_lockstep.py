"""The staleness benchmark measures what it says: the age of data, and areas."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from areal_lit import recipes

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LAG, NUM_STEPS, GROUPS, SAMPLES = 3, 8, 2, 4


@pytest.fixture
def staleness(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("staleness")


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("staleness_report")


@pytest.mark.slow
def test_lockstep_trains_every_token_exactly_so_many_versions_old(staleness: Any, tmp_path: Path) -> None:
    one_at_a_time = {"init_args": {"max_slots": 1}}  # so that drawing takes longer than training, which has to wait
    rollout = {"groups_per_step": GROUPS, "samples_per_group": SAMPLES, "max_staleness": LAG}
    trainer = recipes.load(
        "quickstart_inline",
        {
            "rollout": rollout, "inference": one_at_a_time, "max_steps": NUM_STEPS,
            "loggers": [], "callbacks": [], "runs_dir": str(tmp_path),
        },
    )  # fmt: skip
    record = staleness.Record()
    trainer.callbacks = [record, staleness.Lockstep(groups_per_step=GROUPS, lag=LAG)]
    trainer.fit()
    assert [set(lags) for lags in record.lags] == [{0}, {1}, {2}, {3}, {3}, {3}, {3}, {3}]
    assert all(lags.total() >= GROUPS * SAMPLES for lags in record.lags)
    drawn = [len(record.rewards[version]) for version in range(NUM_STEPS)]
    assert drawn == [(LAG + 1) * GROUPS * SAMPLES] + [GROUPS * SAMPLES] * (NUM_STEPS - 1)


def test_areas_are_compared_with_the_synchronous_run_of_the_same_seed(report: Any) -> None:
    def result(*, lag: int, seed: int, rewards: list[float], is_asynchronous: bool = False) -> Any:
        cell = report.Cell(objective="naive", lag=lag, seed=seed, lr=1e-3, steps=2, is_asynchronous=is_asynchronous)
        return report.Result(cell=cell, seconds=1.0, rewards=rewards, lags={"2": 30, "4": 10}, watched={})

    rows = report.rows_of(
        [
            result(lag=0, seed=0, rewards=[0.4, 0.8]),
            result(lag=0, seed=1, rewards=[0.4, 0.6]),
            result(lag=8, seed=0, rewards=[0.4, 0.5]),
            result(lag=8, seed=1, rewards=[0.4, 0.6]),
            result(lag=8, seed=0, rewards=[0.4, 0.2], is_asynchronous=True),
            result(lag=8, seed=2, rewards=[0.4, 0.9]),  # its synchronous run is not there yet
        ]
    )
    assert [(row.cell.lag, row.cell.is_asynchronous, len(row.results)) for row in rows] == [
        (0, False, 2),
        (8, False, 2),
        (8, True, 1),
    ]
    assert rows[0].shares == rows[0].rises == [1.0, 1.0]
    assert rows[1].shares == pytest.approx([0.75, 1.0])
    assert rows[1].rises == pytest.approx([0.25, 1.0])
    assert rows[2].shares == pytest.approx([0.5])
    assert rows[1].mean(lambda each: each.lag) == 2.5
