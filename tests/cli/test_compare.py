"""``areal-lit compare``: at 80 columns, with runs of unequal length, cut off, with other metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from areal_lit.cli.main import main


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``slow`` of three steps and ``fast`` of five, whose last row is torn."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    tables = {
        "slow": "step,rollout/reward,train/loss,train/lr,only/here\n1,0.25,2,1,1\n2,0.5,1,1,1\n3,0.375,1.5,1,1\n",
        "fast": "step,rollout/reward,train/loss,train/lr\n"
        + "".join(f"{s},{s / 5},{1 / s},1\n" for s in range(1, 6))
        + "6,0.1",
    }
    for name, table in tables.items():
        (tmp_path / "runs" / name).mkdir(parents=True)
        optimizer = {"init_args": {"lr": 1e-4 if name == "slow" else 3e-4}}
        config = {"name": name, "seed": 0, "policy": {"optimizer": optimizer}}
        (tmp_path / "runs" / name / "config.yaml").write_text(yaml.safe_dump(config))
        (tmp_path / "runs" / name / "versions.json").write_text(json.dumps({"torch": "2.13", "commit": name}))
        (tmp_path / "runs" / name / "metrics.csv").write_text(table)
    return tmp_path / "runs"


def blocks(text: str) -> list[list[str]]:
    """Paragraphs, each line with single spaces."""
    return [[" ".join(line.split()) for line in block.splitlines()] for block in text.strip().split("\n\n")]


def test_what_differs_and_what_came_of_it(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "runs/*", "--last", "2"]) == 0
    printed = capsys.readouterr().out
    told, metrics, different, *curves = blocks(printed)
    assert told == ["run steps path", "fast 5 runs/fast", "slow 3 runs/slow"]
    assert different == [
        "key value runs",
        "policy.optimizer.lr 0.0003 fast", "0.0001 slow", "versions.commit fast fast", "slow slow",
    ]  # fmt: skip
    assert metrics == [
        "metric run final mean of 2 best at step",
        "rollout/reward fast 1 0.9 1 5", "slow 0.375 0.4375 0.5 2",
        "train/loss fast 0.2 0.225 0.2 5", "slow 1.5 1.25 1 2",
        "train/lr fast 1 1 - -", "slow 1 1 - -",
    ]  # fmt: skip
    assert curves[0][0] == "(rollout/reward) ^"
    assert curves[-1] == ["not in all runs, but in slow: only/here"]
    assert max(map(len, printed.splitlines())) <= 80


def test_curves_share_one_range_and_are_drawn_where_they_lie(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "runs/fast", "runs/slow", "--curve", "train/loss"]) == 0
    printed = capsys.readouterr().out
    fast, slow = printed.split("(train/loss) ^")[1:]
    axis = [line.split("|")[0] for line in fast.splitlines() if "|" in line]
    assert axis == [line.split("|")[0] for line in slow.splitlines() if "|" in line]
    drawn = [[x for x, dot in enumerate(line.split("|", 1)[1]) if dot > "\u2800"] for line in slow.splitlines()[1:9]]
    assert max(map(max, filter(None, drawn))) < 40, "three of five steps fill three fifths"


def test_only_some_metrics(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "runs/*", "--metric", "train/*", "--curve", "rollout/*"]) == 0
    _, metrics, _, *curves = blocks(capsys.readouterr().out)
    assert {line.split()[0] for line in metrics} == {"metric", "train/loss", "train/lr", "slow"}
    assert curves[0][0] == "(rollout/reward) ^"


def test_results_come_first_and_what_is_always_zero_is_only_counted(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = "step,time/step,train/loss,reward/std,rollout/groups,rollout/reward,eval/sums/reward,train/skipped,idle\n"
    for name, skipped in (("fast", 0), ("slow", 1)):
        (runs / name / "metrics.csv").write_text(f"{table}1,1,1,1,1,1,1,{skipped},0\n2,1,1,1,1,1,1,0,0.0\n")
    assert main(["compare", "runs/fast", "runs/slow"]) == 0
    _, metrics, zero, *_ = blocks(capsys.readouterr().out)
    assert [line.split()[0] for line in metrics[1::2]] == [
        "eval/sums/reward", "rollout/reward", "rollout/groups", "reward/std", "train/loss", "train/skipped",
        "time/step",
    ]  # fmt: skip
    assert zero == ["1 metric is 0 in every run; --json lists all"]


def test_no_key_is_broken_where_there_is_no_terminal(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS")
    key = "of_a_length_that_no_terminal_has_" * 5
    (runs / "fast" / "config.yaml").write_text(yaml.safe_dump({"policy": {key: 1}}))
    assert main(["compare", "runs/fast", "runs/slow"]) == 0
    assert f"policy.{key} " in capsys.readouterr().out


def test_equal_runs_and_runs_without_a_step(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (runs / name).mkdir()
        (runs / name / "config.yaml").write_text("seed: 1\n")
    assert main(["compare", "runs/a", "runs/b"]) == 0
    printed = capsys.readouterr().out
    assert "no difference in recipes or versions" in printed
    assert "the runs share no such metric that has a value" in printed


def test_runs_of_one_name_are_told_apart_by_path(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "fast").rename(runs / "other")
    (runs / "sub").mkdir()
    (runs / "other").rename(runs / "sub" / "slow")
    assert main(["compare", "runs/slow", "runs/sub/slow"]) == 0
    assert any(line.endswith(" runs/sub/slow") for line in blocks(capsys.readouterr().out)[2])


def test_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "runs/slow", "runs/fast", "--json", "--last", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"][0] == {
        "name": "slow", "path": "runs/slow", "steps": 3, "versions": {"torch": "2.13", "commit": "slow"}
    }  # fmt: skip
    assert found["differences"]["policy.optimizer.init_args.lr"] == {"slow": "0.0001", "fast": "0.0003"}
    assert found["metrics"]["rollout/reward"]["slow"] == {"final": 0.375, "mean": 0.375, "best": 0.5, "best_step": 2}
    assert found["metrics"]["train/lr"]["slow"] == {"final": 1.0, "mean": 1.0, "best": None, "best_step": None}


def test_a_picture(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "runs/*", "--curve", "*", "--png", "out/x.png", "--json"]) == 0
    assert (tmp_path / "out" / "x.png").read_bytes().startswith(b"\x89PNG")
    json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["runs/fast"], "one run is nothing to compare: runs/fast; name another, or quote a pattern"),
        (["runs/fast", "runs/sloww"], "no run is at runs/sloww; there are runs/fast, runs/slow"),
        (["runs/*", "--curve", "rollout/rewards"], "the runs share no such metric; did you mean rollout/reward?"),
        (["runs/*", "--last", "0"], "--last must be >= 1, got 0"),
    ],
)
def test_wrong_use_is_one_message(
    runs: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *arguments]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "metrics.csv must be a file that can be read, and is not: Is a directory; move away what stands there"),
        (b"\xff\x00" * 3000 + b"\n", "metrics.csv: the first column must be 'step', got "),
        (b"\n\n", "metrics.csv: the first column must be 'step', got ''"),
        (b"step,a\n1," + b"x" * 200_000 + b"\n", "metrics.csv is no table of areal-lit: field larger than"),
    ],
    ids=["a directory", "rubbish", "empty lines", "a cell beyond bounds"],
)
def test_what_is_no_table_of_metrics_is_told_with_its_path(
    runs: Path, content: bytes | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = runs / "fast" / "metrics.csv"
    file.unlink()
    file.mkdir() if content is None else file.write_bytes(content)
    assert main(["compare", "runs/fast", "runs/slow"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("areal-lit compare: error: runs/fast/metrics.csv")
    assert told in printed
    assert len(printed) < 400, "rubbish is not printed"
