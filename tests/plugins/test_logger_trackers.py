"""Experiment trackers, each really run without a network and read back with its own library."""

from __future__ import annotations

import csv
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tracker_readers import READERS, Logged, wandb_records

from areal_lit import hookimpl, recipes
from areal_lit.contracts import Callback, RunLogger
from areal_lit.testing import check_logger
from areal_lit_loggers.aim import Aim
from areal_lit_loggers.lightning import Lightning
from areal_lit_loggers.mlflow import MLflow, metric_name
from areal_lit_loggers.swanlab import SwanLab
from areal_lit_loggers.tensorboard import TensorBoard
from areal_lit_loggers.trackers import Journal, Tracker
from areal_lit_loggers.trackio import Trackio
from areal_lit_loggers.wandb import Wandb

# aim and mlflow are behind sqlalchemy
pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``declarative_base:DeprecationWarning:aim"),
    pytest.mark.filterwarnings("ignore:The ``noload``:DeprecationWarning:mlflow"),
]

SECRET = "hidden-in-every-tracker"
RECIPE = """
loggers:
  - csv
  - class_path: samples
    init_args: {groups_per_step: 4, samples_per_group: 4}
  - class_path: plots
    init_args: {every_s: 0}
  - class_path: lightning
    init_args:
      logger: pytorch_lightning.loggers.CSVLogger
      arguments: {save_dir: .}
  - class_path: tensorboard
    init_args: {samples_per_step: 16}
  - class_path: wandb
    init_args: {offline: true, samples_per_step: 16}
  - class_path: mlflow
    init_args: {samples_per_step: 16}
  - class_path: aim
    init_args: {samples_per_step: 16}
  - class_path: trackio
    init_args: {samples_per_step: 16}
  - class_path: swanlab
    init_args: {offline: true, samples_per_step: 16}
callbacks:
  - test_logger_trackers.Breaks
evaluation: {every_steps: 2}
checkpoint: {every_steps: 2, at_end: false, export_hf: false}
rollout: {groups_per_step: 4, samples_per_group: 4}
"""


class Breaks(Callback):
    """Ends the first run after step 3."""

    @hookimpl
    def step_end(self, step: int) -> None:
        if step == 3 and os.environ.get("BREAKS"):
            raise RuntimeError("broken on purpose")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with all of them, which failed after step 3 and went on from its checkpoint of step 2 to step 5."""
    (tmp_path / "trackers.yaml").write_text(RECIPE)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0)
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        environment = {
            **{name: value for name, value in os.environ.items() if name.partition("_")[0].lower() not in READERS},
            **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), address),
            "PYTHONPATH": str(Path(__file__).parent),
            "HOME": str(tmp_path / "home"),
        }
        (tmp_path / "home").mkdir()
        command = [
            sys.executable, "-m", "areal_lit", "fit", "--config", "quickstart_inline", "--config", "trackers.yaml",
            "--max_steps", "5", "--template_kwargs", f"{{api_key: {SECRET}}}",
        ]  # fmt: skip
        for resume, breaks, expected in (([], "yes", 1), (["--resume", "auto"], "", 0)):
            done = subprocess.run(
                [*command, *resume], cwd=tmp_path, env={**environment, "BREAKS": breaks}, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=600,
            )  # fmt: skip
            assert done.returncode == expected, done.stdout + done.stderr
        with pytest.raises(BlockingIOError):
            proxy.accept()
    assert {path.name for path in tmp_path.iterdir()} == {"trackers.yaml", "runs", "home"}
    at_home = [str(path) for path in (tmp_path / "home").rglob("*")]
    assert [path for path in at_home for name in READERS if name in path] == []
    return tmp_path / "runs" / "quickstart_inline"


@pytest.mark.slow
@pytest.mark.timeout(1500)  # two runs that import seven trackers each, on a machine that may be busy
def test_a_run_that_was_resumed_is_one_run_with_each_step_once_and_no_secret(run_dir: Path) -> None:
    expected = csv_metrics(run_dir)
    for name, read in READERS.items():
        check_logged(name, read(run_dir), expected)
        if name != "lightning":
            check_media(name, read(run_dir), run_dir)
    files = [path for path in run_dir.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


def csv_metrics(run_dir: Path) -> dict[str, dict[int, float]]:
    """Metric -> step -> value."""
    values: dict[str, dict[int, float]] = {}
    with (run_dir / "metrics.csv").open() as file:
        for row in csv.DictReader(file):
            for name, cell in row.items():
                if name != "step" and cell:
                    values.setdefault(name, {})[int(row["step"])] = float(cell)
    return values


def check_logged(name: str, logged: Logged, expected: dict[str, dict[int, float]]) -> None:
    assert logged.num_runs == 1, name
    assert [step for step, _ in logged.metrics["rollout/reward"]] == [1, 2, 3, 4, 5], name
    assert [step for step, _ in logged.metrics["eval/arithmetic/reward"]] == [2, 4], name
    named = {metric_name(metric) if name == "mlflow" else metric: values for metric, values in expected.items()}
    assert set(logged.metrics) == set(named), name
    for metric, points in logged.metrics.items():
        steps = [step for step, _ in points]
        assert steps == sorted(set(steps)), (name, metric)
        # step 3 was run twice, and took another time the second time
        values = {step: value for step, value in points if step != 3}
        expected_values = {step: value for step, value in named[metric].items() if step != 3}
        assert values == pytest.approx(expected_values, rel=1e-6, nan_ok=True), (name, metric)
    for key in ("api_key", "***", "quickstart_inline", "tensorboard"):
        assert key in logged.config, name
    finished = {"wandb": "0", "mlflow": "FINISHED", "aim": "finished", "swanlab": "1"}
    assert logged.status == finished.get(name, ""), name


def check_media(name: str, logged: Logged, run_dir: Path) -> None:
    text = "\n".join(logged.samples)
    with (run_dir / "samples.jsonl").open() as lines:
        shown = [json.loads(line) for line in lines]
    assert {record["step"] for record in shown} == {1, 2, 3, 4, 5}
    for record in shown:
        if record["step"] != 3:
            assert record["completion"] in text, name
    sizes = {}
    for path in run_dir.glob("plots/*.png"):
        with Image.open(path) as image:
            sizes[f"figures/{path.stem}"] = image.size
    assert logged.figures == sizes, name


def offline(name: str) -> RunLogger:
    if name == "lightning":
        return Lightning(logger="pytorch_lightning.loggers.CSVLogger", arguments={"save_dir": "."})
    classes = {"tensorboard": TensorBoard, "mlflow": MLflow, "aim": Aim, "trackio": Trackio}
    return classes[name]() if name in classes else {"wandb": Wandb, "swanlab": SwanLab}[name](offline=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_keeps_the_contract(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "all_of_trackio"))
    check_logger(lambda: offline(name), tmp_path, steps=lambda run_dir: all_steps(READERS[name](run_dir)))


def all_steps(logged: Logged) -> list[int]:
    return sorted(step for key in ("rollout/reward", "eval/test/reward") for step, _ in logged.metrics[key])


class Elsewhere(Tracker):
    """A tracker whose library is not installed."""

    name = "elsewhere"
    packages = ("json", "no_such_package")

    def open(self, directory, config, journal, step):
        raise AssertionError("it cannot be opened")

    log_metrics = finish = open


def test_a_missing_package_is_told_with_the_extra_by_validate_and_at_the_start(tmp_path: Path) -> None:
    way_out = r"needs no_such_package, which is not installed: pip install 'areal-lit\[elsewhere\]'"
    (rule,) = recipes.load("quickstart_inline", overrides=["loggers=[test_logger_trackers.Elsewhere]"]).validate()
    assert re.search(way_out, rule)
    with pytest.raises(RuntimeError, match=way_out):
        Elsewhere().setup(tmp_path, {}, 0)


class FarElsewhere(Elsewhere):
    packages = ("no_such_package", "json", "nor_this_one")


def test_several_missing_packages_are_told_in_one_sentence() -> None:
    (problem,) = FarElsewhere().problems()
    assert "needs no_such_package and nor_this_one, which are not installed: pip install" in problem


@pytest.mark.parametrize("make", [Wandb, SwanLab])
def test_without_an_account_nobody_is_asked_for_one(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "SWANLAB_API_KEY", "SWANLAB_ROOT", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match=r"has no account .* login` once, set \w+_API_KEY, or .*\(offline: true\)"):
        make().setup(tmp_path, {}, 0)
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password secret\n")
    (tmp_path / ".swanlab").mkdir()
    (tmp_path / ".swanlab" / ".netrc").touch()
    assert list(make().problems()) == []


def test_trackio_tells_where_it_cannot_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import trackio

    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    with pytest.raises(RuntimeError, match=r"cannot write to .*Set TRACKIO_DIR to one directory for all runs") as told:
        Trackio().setup(tmp_path, {}, 0)
    assert str(tmp_path / "trackio") in str(told.value)
    assert str(trackio.utils.TRACKIO_DIR) in str(told.value)
    assert "TRACKIO_DIR" not in os.environ


class Sets(Tracker):
    """A tracker whose library reads a variable, and sets one of its own when it is opened."""

    name = "sets"
    packages = ()

    def environment(self, directory):
        return {"SETS_DIR": str(directory)}

    def open(self, directory, config, journal, step):
        os.environ["SETS_OPENED"] = "yes"

    def log_metrics(self, step, values):
        self.seen = os.environ["SETS_DIR"]
        os.environ["OF_ANOTHER_THREAD"] = "meanwhile"

    def finish(self, status):
        pass


def test_the_environment_is_a_librarys_while_it_is_called_and_nobody_elses_variable_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_ANOTHER_THREAD", "before")
    logger = Sets()
    logger.setup(tmp_path, {}, 0)
    logger.metrics(1, {"a": 1.0})
    logger.close("finished")
    assert logger.seen == str(tmp_path / "sets")
    assert os.environ["OF_ANOTHER_THREAD"] == "meanwhile"
    assert not {"SETS_DIR", "SETS_OPENED"} & os.environ.keys()


def test_a_journal_survives_its_process_and_is_no_other_runs(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json", step=0)
    journal.run_id = "one"
    for step in (1, 2, 2, 3):
        assert journal.is_new(step)
        journal.note(step)
    resumed = Journal(tmp_path / "journal.json", step=2)
    assert (resumed.run_id, resumed.is_resumed) == ("one", True)
    assert [resumed.is_new(step) for step in (2, 3, 4)] == [False, False, True]
    for other in (Journal(tmp_path / "other.json", step=2), Journal(tmp_path / "journal.json", step=0)):
        assert (other.run_id, other.is_resumed) == ("", False)
        assert other.is_new(1)


def test_changed_names_stay_apart_and_fit_mlflow() -> None:
    names = ["train/loss", "a@b", "a%b", "größe", "x" * 250, "x" * 251, "x" * 252]
    changed = [metric_name(name) for name in names]
    assert changed[0] == names[0]
    assert changed[4] == names[4]
    assert len(set(changed)) == len(names)
    assert all(len(name) <= 250 and re.fullmatch(r"[A-Za-z0-9_/. -]+", name) for name in changed)


def test_lightning_loggers_of_two_classes_have_a_directory_each() -> None:
    both = [Lightning(logger=f"pytorch_lightning.loggers.{name}") for name in ("CSVLogger", "CometLogger")]
    assert [logger.writes for logger in both] == ["lightning/CSVLogger", "lightning/CometLogger"]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="samples_per_step must be >= 0, got -1"):
        TensorBoard(samples_per_step=-1)
    with pytest.raises(ValueError, match="artifacts must be one of none, reference, upload, got 'yes'"):
        Wandb(artifacts="yes")
    with pytest.raises(ValueError, match="dotted path of a class, got 'CSVLogger'"):
        Lightning(logger="CSVLogger")


@pytest.mark.slow
def test_models_reach_the_trackers_that_have_a_place(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    for artifacts in ("reference", "upload"):
        run = tmp_path / artifacts
        run.mkdir()
        logger = MLflow(artifacts=artifacts)
        logger.setup(run, {}, 0)
        logger.artifact(3, "model", model)
        logger.close("finished")
        uploaded = list(run.glob("mlflow/artifacts/*/artifacts/model/00000003/config.json"))
        assert len(uploaded) == (artifacts == "upload")
        with closing(sqlite3.connect(run / "mlflow" / "mlflow.db")) as database:
            tags = database.execute("SELECT value FROM tags WHERE key = 'model'").fetchall()
        assert tags == ([(str(model),)] if artifacts == "reference" else [])
        wandb = Wandb(offline=True, artifacts=artifacts)
        wandb.setup(run, {}, 0)
        wandb.artifact(3, "model", model)
        wandb.close("finished")
        (artifact,) = [record.artifact for _, record in wandb_records(run) if record.HasField("artifact")]
        (entry,) = artifact.manifest.contents
        assert entry.path == "config.json"
        assert bool(entry.local_path) == (artifacts == "upload")
