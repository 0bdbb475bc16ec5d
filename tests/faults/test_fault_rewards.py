"""Rewards that misbehave in a real run: each is unscored or scored as it should, and none harms another."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from child_processes import await_gone
from fault_parts import Rows, Trained, small
from misbehaving import Misbehaving

from areal_lit.logs import Logs
from areal_lit.rewarding import Rewarding
from areal_lit_launchers.local import Local

UNSCORED = {
    "timeout": ("hangs",),
    "crash": ("vanishes",),
    "error": ("raises", "exits", "devours"),
    "invalid": ("nan", "inf", "text", "none", "array"),
}
SCORED = ("good", "loud", "daemon", "forks", "splits", "closes", "unplugs", "moves", "deafens")


@pytest.mark.slow
def test_a_run_outlives_whatever_its_reward_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    acts = [act for of_kind in UNSCORED.values() for act in of_kind] + list(SCORED)
    pids = tmp_path / "pids"
    # between any two acts the one worker scores a call that looks whether it found things as they were
    rows = [prompt for act in acts for prompt in (act, "good")]
    run = small(
        tmp_path, launcher=Local(), data=Rows(rows), reward=Misbehaving(pids), loggers=[trained := Trained()],
        rewarding=Rewarding(num_workers=1, timeout_s=6.0, max_attempts=1), logs=Logs(max_mib=1, num_files=2),
        rollout={"num_epochs": 1}, max_steps=None,
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        path = run.fit()
    assert trained.prompts == sorted([*SCORED, *["good"] * len(acts)])
    for kind, of_kind in UNSCORED.items():
        assert trained.total(f"reward/unscored_{kind}") == 2 * len(of_kind), kind
    assert trained.total("rollout/rejected/failed") == sum(map(len, UNSCORED.values()))
    assert {t.reward for group in trained.groups for t in group.trajectories} == {1.0}, "a fork's result counts once"
    assert "reward 'default' has no value for row" in caplog.text
    assert 0 < sum(log.stat().st_size for log in (path / "logs").glob("reward.log*")) < 3 * 2**20
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 2 * len(("hangs", "vanishes", "daemon", "forks", "splits"))
    assert await_gone(started) == []
