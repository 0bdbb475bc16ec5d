"""metrics.csv and config.yaml read back, and in what runs differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from areal_lit.run_records import RecordsError, RunRecords, differences, find_runs, read_metrics


def make_run(path: Path, config: object = None, table: str = "step\n", versions: object = None) -> Path:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump({} if config is None else config))
    (path / "metrics.csv").write_text(table)
    if versions is not None:
        (path / "versions.json").write_text(json.dumps(versions))
    return path


def test_curves_leave_out_what_is_missing_torn_or_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,a,eval/x/reward,never\n1,1.5,,\n2,nan,0.5,\n3,inf,,\n4,3,,\n4,9,9,\n5,x,,\n6,7")
    metrics = read_metrics(path)
    assert list(metrics.curves) == ["a", "eval/x/reward"]
    assert (list(metrics["a"].steps), list(metrics["a"].values)) == ([1, 4], [1.5, 3])
    assert list(metrics["eval/x/reward"].steps) == [2]
    assert metrics.last_step == 4
    with pytest.raises(KeyError, match="did you mean eval/x/reward"):
        metrics["eval/x/rewards"]


def test_final_best_and_mean(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,rollout/reward,train/loss,time/step\n1,0.5,2,3\n2,1.0,1,1\n3,0.75,3,2\n4,1.0,4,5\n")
    metrics = read_metrics(path)
    assert (metrics["rollout/reward"].final, metrics["rollout/reward"].best) == (1.0, (1.0, 2))
    assert metrics["train/loss"].best == (1.0, 2)
    assert metrics["time/step"].best == (1.0, 2)
    assert metrics["rollout/reward"].mean(last=2) == 0.875
    assert metrics["rollout/reward"].mean(last=99) == 0.8125


@pytest.mark.parametrize("text", [None, "", "step\n", "step,a\n", "step,a"])
def test_a_table_without_rows_has_no_metrics(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "metrics.csv"
    if text is not None:
        path.write_text(text)
    assert read_metrics(path).curves == {}
    assert read_metrics(path).last_step == 0


def test_a_foreign_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("epoch,loss\n1,2\n")
    with pytest.raises(ValueError, match="first column must be 'step', got 'epoch'"):
        read_metrics(tmp_path / "metrics.csv")


def test_only_what_differs_is_told_by_dotted_key(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", {"name": "one", "seed": 0, "f": [{"a": 1}], "o": {"lr": 1e-3, "w": None}})
    two = make_run(tmp_path / "two", {"name": "two", "seed": 0, "f": [{"a": 2}], "o": {"lr": 1e-3}, "b": True})
    runs = [RunRecords(one), RunRecords(two)]
    assert differences(runs) == {"f.0.a": ["1", "2"], "o.w": ["null", "absent"], "b": ["absent", "true"]}
    assert differences(runs[:1] * 2) == {}


def test_a_section_that_a_run_lacks_is_one_key(tmp_path: Path) -> None:
    critic = {"model": {"path": "x"}, "num_ranks": 1}
    logger = {"class_path": "a.Csv", "init_args": {"every": 1}}
    configs = {
        "none": {"critic": None, "loggers": [], "same": {"x": None}},
        "one": {"critic": critic, "loggers": [logger], "same": {"x": None}},
        "two": {"critic": {**critic, "num_ranks": 2}, "loggers": [logger], "same": {"x": None}},
    }
    none, one, two = (RunRecords(make_run(tmp_path / name, config)) for name, config in configs.items())
    assert differences([none, one]) == {"critic": ["null", "given"], "loggers.0": ["absent", "a.Csv"]}
    assert differences([none, one, two]) == {
        "critic": ["null", "given", "given"], "critic.num_ranks": ["absent", "1", "2"],
        "loggers.0": ["absent", "a.Csv", "a.Csv"],
    }  # fmt: skip


def test_versions_are_compared_where_every_run_has_them(tmp_path: Path) -> None:
    one = RunRecords(make_run(tmp_path / "one", versions={"torch": "2.9", "numpy": "2", "commit": None}))
    two = RunRecords(make_run(tmp_path / "two", versions={"torch": "2.13", "numpy": "2", "commit": "abc"}))
    old = RunRecords(make_run(tmp_path / "old"))
    assert differences([one, two]) == {"versions.torch": ["2.9", "2.13"], "versions.commit": ["null", "abc"]}
    assert differences([one, old]) == {}


def test_a_recipe_that_was_cut_off_is_none(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "config.yaml").write_text("policy: {model")
    assert RunRecords(run).config == {}


def test_a_recipe_is_read_without_secrets(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"loggers": [{"api_key": "short"}]})
    assert RunRecords(run).config == {"loggers": [{"api_key": "***"}]}


def test_runs_are_found_by_path_and_pattern_once_and_in_order(tmp_path: Path) -> None:
    for name in ("b", "a", "other"):
        make_run(tmp_path / name)
    (tmp_path / "aa-no-run").mkdir()
    found = find_runs([str(tmp_path / "b"), str(tmp_path / "[ab]*")])
    assert [run.name for run in found] == ["b", "a"]


def test_what_is_no_run_is_told_with_those_beside_it(tmp_path: Path) -> None:
    make_run(tmp_path / "quickstart")
    for pattern in (str(tmp_path / "quikstart"), str(tmp_path)):
        with pytest.raises(RecordsError, match=r"there are .*/quickstart$"):
            find_runs([pattern])
