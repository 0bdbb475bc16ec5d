"""Workflows that misbehave: their samples are lost and counted, and a run of nothing else ends by the reason."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from fault_parts import Rows, Trained, small
from misbehaving import Wayward

from areal_lit_callbacks.progress.concerns import concerns

FAILING = ("raises", "exits", "hangs", "text", "short", "nan", "outside")


@pytest.mark.slow
def test_a_run_outlives_whatever_its_workflow_does(tmp_path: Path) -> None:
    rows = [*FAILING, "none", *["good"] * 6]
    run = small(
        tmp_path, data=Rows(rows), workflow=Wayward(), loggers=[trained := Trained()], max_steps=None,
        rollout={"num_epochs": 1, "max_attempts": 2, "failure_budget": 1.0, "episode_timeout_s": 3.0},
    )  # fmt: skip
    run.fit()
    assert trained.prompts == ["good"] * 6
    assert trained.total("rollout/failed_episodes") == trained.total("rollout/retries") == 2 * len(FAILING)
    assert trained.total("rollout/dropped_episodes") == 2
    assert trained.total("rollout/rejected/failed") == len(FAILING)
    assert trained.total("rollout/rejected/dropped") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("act", "concern"), [("good", None), ("masks", "masked")])
def test_a_run_that_trains_on_no_token_says_so(tmp_path: Path, act: str, concern: str | None) -> None:
    run = small(tmp_path, workflow=Wayward(act), loggers=[trained := Trained()], max_steps=1)
    run.fit()
    values = trained.steps[1]
    assert values["train/tokens"] == sum(each.num_generated for group in trained.groups for each in group.trajectories)
    assert (concern in concerns(values, warn_above=1e-3)) == (concern is not None)


@pytest.mark.slow
def test_what_is_rejected_after_the_last_step_is_counted_in_its_row(tmp_path: Path) -> None:
    run = small(
        tmp_path, data=Rows(["good"] * 2 + ["none"] * 12), workflow=Wayward(), max_steps=None,
        rollout={"num_epochs": 1},
    )  # fmt: skip
    (row,) = csv.DictReader((run.fit() / "metrics.csv").read_text().splitlines())
    assert [float(row[f"rollout/{name}"]) for name in ("groups", "rejected", "rejected/dropped")] == [2, 12, 12]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "rollout", "says"),
    [
        (
            "raises",
            {},
            r"failed for good, .* \(rollout.failure_budget\); the last: LookupError: no such tool",
        ),
        ("exits", {}, "the last: SystemExit: 3"),
        (
            "hangs",
            {"episode_timeout_s": 0.3},
            r"sample \d of prompt \d+ \(rows row \d+\) .* Wayward after episode_",
        ),
        ("short", {}, r"workflow Wayward returned \d+ tokens with \d+ loss_mask, \d+ logprobs"),
        ("nan", {}, "workflow Wayward returned log-prob nan, and all must be finite and at most 0"),
        ("outside", {}, r"returned token ids from \d+ to 64, and all must be >= 0 and below the vocabulary's 64"),
        ("none", {}, r"last 64 groups were all rejected \(dropped 64\).*the workflow returned None for every sample"),
        (
            "none",
            {"num_epochs": 1, "max_rejected_groups": 99},
            r"the data ended before .* all 64 .*dropped 64",
        ),
    ],
)
def test_a_workflow_that_always_fails_ends_the_run_by_its_reason(
    tmp_path: Path, act: str, rollout: dict[str, object], says: str
) -> None:
    with pytest.raises(RuntimeError, match=says):
        small(tmp_path, workflow=Wayward(act), rollout={"max_attempts": 1, **rollout}).fit()


@pytest.mark.slow
def test_a_workflow_that_blocks_the_event_loop_is_named_by_its_line(tmp_path: Path) -> None:
    run = small(tmp_path, workflow=Wayward("blocks"), rollout={"wait_timeout_s": 3.0})
    with pytest.raises(TimeoutError, match=r"groups of step 0 .* blocks in .*misbehaving.py, line \d+, blocks the"):
        run.fit()
