"""metrics.csv: columns that appear late, several reports of a step, resuming, torn files."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_lit.run_records import read_rows
from areal_lit.testing import check_logger
from areal_lit_loggers.csv import Csv


def table(run_dir: Path):
    with (run_dir / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def started(run_dir, step=0):
    logger = Csv()
    logger.setup(run_dir, {}, step)
    return logger


def test_keeps_the_contract(tmp_path):
    check_logger(Csv, tmp_path, steps=lambda run_dir: [int(row["step"]) for row in table(run_dir)])


def test_a_row_is_on_disk_when_the_step_ends(tmp_path):
    logger = started(tmp_path)
    logger.metrics(1, {"rollout/reward": 0.1})
    assert table(tmp_path) == [{"step": "1", "rollout/reward": "0.1"}]
    logger.close("finished")


def test_late_columns_leave_earlier_rows_empty(tmp_path):
    logger = started(tmp_path)
    logger.metrics(1, {"a": 1})
    logger.metrics(2, {"b": 0.5, "a": 2})
    logger.metrics(3, {"b": float("nan")})
    logger.close("finished")
    assert (tmp_path / "metrics.csv").read_text() == "step,a,b\n1,1,\n2,2,0.5\n3,,nan\n"
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def test_reports_of_one_step_join_its_row(tmp_path):
    logger = started(tmp_path)
    logger.metrics(1, {"a": 1.0})
    logger.metrics(2, {"a": 2.0})
    logger.metrics(2, {"eval/x/reward": 0.25})
    logger.metrics(2, {"a": 2.5})
    logger.metrics(3, {"a": 3.0})
    logger.close("finished")
    assert [(row["step"], row["a"], row["eval/x/reward"]) for row in table(tmp_path)] == [
        ("1", "1.0", ""),
        ("2", "2.5", "0.25"),
        ("3", "3.0", ""),
    ]


def test_rows_past_the_resumed_step_are_dropped(tmp_path):
    logger = started(tmp_path)
    for step in range(1, 6):
        logger.metrics(step, {"a": step})
    logger.close("failed")
    resumed = started(tmp_path, step=3)
    resumed.metrics(3, {"eval/x/reward": 0.5})
    resumed.metrics(4, {"a": 40})
    resumed.close("finished")
    assert [(row["step"], row["a"], row["eval/x/reward"]) for row in table(tmp_path)] == [
        ("1", "1", ""),
        ("2", "2", ""),
        ("3", "3", "0.5"),
        ("4", "40", ""),
    ]


def test_a_fresh_run_starts_over(tmp_path):
    first = started(tmp_path)
    first.metrics(1, {"a": 1})
    first.close("failed")
    started(tmp_path).close("finished")
    assert (tmp_path / "metrics.csv").read_text() == "step\n"


@pytest.mark.parametrize("torn", ["2,1.5", "2,1.5,2.0"])
def test_a_torn_last_row_is_left_out(tmp_path, torn):
    (tmp_path / "metrics.csv").write_text(f"step,a,b\n1,1.0,2.0\n{torn}")
    resumed = started(tmp_path, step=2)
    resumed.metrics(3, {"a": 9.0})
    resumed.close("finished")
    assert [row["step"] for row in table(tmp_path)] == ["1", "3"]


def test_a_foreign_file_is_refused(tmp_path):
    (tmp_path / "metrics.csv").write_text("epoch,loss\n1,2\n")
    with pytest.raises(ValueError, match="first column must be 'step', got 'epoch'"):
        started(tmp_path, step=1)


def test_without_setup_it_says_so():
    with pytest.raises(RuntimeError, match="call setup"):
        Csv().metrics(1, {"a": 1.0})


@given(
    steps=st.lists(
        st.dictionaries(st.sampled_from(["a", "b/c", 'd,"e"']), st.floats(allow_infinity=False), max_size=3),
        min_size=1,
        max_size=8,
    )
)
def test_what_was_logged_reads_back_exactly(tmp_path_factory, steps):
    run_dir = tmp_path_factory.mktemp("run")
    logger = started(run_dir)
    for step, values in enumerate(steps):
        logger.metrics(step, values)
    logger.close("finished")
    rows = list(read_rows(run_dir / "metrics.csv"))
    assert [row.step for row in rows] == list(range(len(steps)))
    for row, values in zip(rows, steps, strict=True):
        read = {name: float(cell) for name, cell in row.cells.items()}
        assert read.keys() == values.keys()
        assert all(
            read[name] == value or (math.isnan(read[name]) and math.isnan(value)) for name, value in values.items()
        )
