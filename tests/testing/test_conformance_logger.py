"""check_logger passes a sound logger and fails each planted bug."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from areal_lit.contracts import RunLogger
from areal_lit.testing import check_logger


class Lines(RunLogger):
    """Sound: a JSON line per call, cut back on resume."""

    def setup(self, run_dir, config, step):
        self.path = run_dir / "lines"
        kept = self.path.read_text().splitlines() if step and self.path.exists() else []
        self.path.write_text("".join(f"{line}\n" for line in kept if json.loads(line)["step"] <= step))

    def metrics(self, step, values):
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")


class Appends(Lines):
    def setup(self, run_dir, config, step):
        self.path = run_dir / "lines"


class Mutates(Lines):
    def metrics(self, step, values):
        values["step"] = step


class NeedsSetup(Lines):
    def close(self, status):
        self.path.touch()


class LeavesThread(Lines):
    def setup(self, run_dir, config, step):
        super().setup(run_dir, config, step)
        RELEASE.clear()
        threading.Thread(target=RELEASE.wait, args=(30,), name="left-behind", daemon=True).start()


class EndsAnother(Lines):
    def close(self, status):
        RELEASE.set()
        for thread in threading.enumerate():
            if thread.name == "another":
                thread.join()


class AppendsOnce(Lines):
    """Sorted, but with the steps that it had before."""

    def setup(self, run_dir, config, step):
        self.path = run_dir / "lines"

    def metrics(self, step, values):
        super().metrics(step, values)
        self.path.write_text("".join(sorted(self.path.read_text().splitlines(keepends=True))))


class ChangesEnvironment(Lines):
    def setup(self, run_dir, config, step):
        super().setup(run_dir, config, step)
        os.environ["LEFT_BEHIND"] = "yes"


class RefusesNames(Lines):
    def metrics(self, step, values):
        if not all(name.isascii() for name in values):
            raise ValueError("names must be ASCII")
        super().metrics(step, values)


class SwallowsErrors(Lines):
    def setup(self, run_dir, config, step):
        self.is_lost = not run_dir.is_dir()
        if not self.is_lost:
            super().setup(run_dir, config, step)

    def metrics(self, step, values):
        if not self.is_lost:
            super().metrics(step, values)


class WritesSecrets(Lines):
    def samples(self, step, groups):
        texts = [trajectory.text for group in groups for trajectory in group.trajectories]
        with self.path.with_name("texts").open("a", errors="replace") as file:
            file.writelines(texts)


class NamesNoFile(Lines):
    draws = True

    def new_figures(self):
        return {"reward": Path("nowhere.png")}


class DrawsUnsaid(Lines):
    def new_figures(self):
        return {"reward": Path(__file__)}


class OpensInConstructor(Lines):
    def __init__(self):
        self.lock = threading.Lock()


RELEASE = threading.Event()


def steps(run_dir):
    return [json.loads(line)["step"] for line in (run_dir / "lines").read_text().splitlines()]


def test_a_sound_logger_passes(tmp_path):
    check_logger(Lines, tmp_path, steps=steps)


def test_a_thread_of_another_may_end_meanwhile(tmp_path):
    RELEASE.clear()
    threading.Thread(target=RELEASE.wait, args=(30,), name="another").start()
    check_logger(EndsAnother, tmp_path, steps=steps)


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (Appends, "on resume drop what lies past the step"),
        (AppendsOnce, r"the steps \[3, 4\] are there twice"),
        (Mutates, "leave it unchanged"),
        (LeavesThread, "left-behind"),
        (ChangesEnvironment, "the environment"),
        (RefusesNames, "names must be ASCII"),
        (SwallowsErrors, "neither setup"),
        (WritesSecrets, "a secret in a sample is written"),
        (NamesNoFile, "where there is no file"),
        (DrawsUnsaid, "draws must be True"),
        (OpensInConstructor, "does not pickle before setup"),
    ],
)
def test_planted_bugs_fail(tmp_path, mutant, message, monkeypatch):
    monkeypatch.setenv("LEFT_BEHIND", "no")
    with pytest.raises(AssertionError, match=message):
        check_logger(mutant, tmp_path, steps=steps)
    RELEASE.set()


def test_a_logger_that_cannot_close_before_setup_fails(tmp_path):
    with pytest.raises(AssertionError, match="before setup"):
        check_logger(NeedsSetup, tmp_path)
