"""A tracker that goes away in mid-run: the run ends with its name, and nothing trained is lost."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from areal_lit import recipes
from areal_lit.contracts import RunLogger
from areal_lit.run.loggers import LoggerError
from areal_lit.trainer import Trainer
from areal_lit_loggers.csv import Csv
from areal_lit_loggers.samples import Samples


class GoesAway(RunLogger):
    """Its service is there for one step, and keeps what it was closed with."""

    def setup(self, run_dir, config, step):
        self.status = run_dir / "status"

    def metrics(self, step, values):
        if step == 2:
            raise ConnectionError("the tracker is away")

    def close(self, status):
        self.status.write_text(status)


class Watches(RunLogger):
    """Looks at what the run is said to do while it logs."""

    def __init__(self):
        self.told = []

    def setup(self, run_dir, config, step): ...

    def metrics(self, step, values):
        self.told.append(self.trainer.activity.now())


def trainer(runs_dir: Path, *loggers: RunLogger) -> Trainer:
    sizes = ("rollout.groups_per_step=2", "rollout.samples_per_group=2", "max_steps=3", "callbacks=[]")
    made = recipes.load("quickstart_inline", overrides=[f"runs_dir={runs_dir}", *sizes])
    made.loggers = loggers
    return made


@pytest.mark.slow
def test_the_run_ends_with_its_name_and_goes_on_without_it(tmp_path: Path) -> None:
    with pytest.raises(LoggerError, match=r"metrics\(\) of logger .*GoesAway .*ConnectionError at step 2: the tracker"):
        trainer(tmp_path, GoesAway(), Csv(), Samples()).fit()
    run = tmp_path / "quickstart_inline"
    assert (run / "status").read_text() == "failed"
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000002"]
    trainer(tmp_path, Csv(), Samples()).fit(resume="auto")
    with (run / "metrics.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["1", "2", "3"]
    steps = {json.loads(line)["step"] for line in (run / "samples.jsonl").read_text().splitlines()}
    assert steps == {1, 2, 3}


@pytest.mark.slow
def test_a_run_that_waits_for_its_loggers_says_so(tmp_path: Path) -> None:
    run = trainer(tmp_path, watches := Watches())
    run.max_steps = 1
    watches.trainer = run
    run.fit()
    assert watches.told[0].what == "waiting for the loggers to take the step"
