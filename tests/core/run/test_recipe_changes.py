"""A changed recipe never goes on without a word."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from areal_lit.run.recipe_changes import fixed_changes, log_changes

SAVED: dict[str, Any] = {
    "seed": 0,
    "name": "first",
    "max_steps": 5,
    "algorithm": {"class_path": "a.GRPO", "init_args": {"clip": 0.2}},
    "data": {"class_path": "d.Sums", "init_args": {"digits": 2}},
    "policy": {"optimizer": {"class_path": "o.AdamW", "init_args": {"lr": 0.0003}}},
    "checkpoint": {"keep_last": 2},
    "token": "***",
}


def changed(**values: Any) -> dict[str, Any]:
    return {**SAVED, **values}


@pytest.mark.parametrize(
    ("current", "says"),
    [
        (changed(seed=1), "seed was 0 and now is 1; .* Put 0 back, or start a new run"),
        (changed(algorithm={"class_path": "a.SFT"}), "algorithm.class_path was a.GRPO and now is a.SFT"),
        (changed(data={"class_path": "d.GSM8K"}), "data.class_path was d.Sums and now is d.GSM8K"),
    ],
)
def test_another_seed_algorithm_or_data_is_refused(current: dict[str, Any], says: str) -> None:
    (rule,) = fixed_changes(Path("runs/x/step-1"), SAVED, current)
    assert re.match(f"cannot resume from runs/x/step-1: {says}", rule)


def test_a_new_run_may_start_from_the_model_where_it_was_exported(tmp_path: Path) -> None:
    def rule() -> str:
        return next(fixed_changes(tmp_path, SAVED, changed(seed=1)))

    assert rule().endswith("(--name NAME without --resume)")
    (tmp_path / "hf").mkdir()
    assert f"policy.model.path={tmp_path / 'hf'} starts it" in rule()


def test_each_of_them_is_told() -> None:
    rules = list(fixed_changes(Path("c"), SAVED, changed(seed=1, data={"class_path": "d.GSM8K"})))
    assert [rule.split(" ")[4] for rule in rules] == ["seed", "data.class_path"]


def test_what_else_changed_is_said(caplog: pytest.LogCaptureFixture) -> None:
    current = changed(
        policy={"optimizer": {"class_path": "o.AdamW", "init_args": {"lr": 1.0, "beta": 0.9}}},
        data={"class_path": "d.Sums", "init_args": {}},
    )
    log_changes(SAVED, current)
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (logging.WARNING, "resume: data.init_args.digits 2 -> absent"),
        (logging.WARNING, "resume: policy.optimizer.init_args.lr 0.0003 -> 1.0"),
        (logging.WARNING, "resume: policy.optimizer.init_args.beta absent -> 0.9"),
    ]


def test_what_may_change_and_what_did_not_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    current = changed(name="second", max_steps=9, checkpoint={"keep_last": 0}, loggers=[], token="hf_1")
    log_changes(SAVED, current)
    log_changes({}, current)
    assert not caplog.records
    assert [*fixed_changes(Path("c"), SAVED, current), *fixed_changes(Path("c"), {}, changed(seed=1))] == []
