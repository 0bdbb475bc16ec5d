"""No planted secret survives on disk or on the terminal, of a run that finishes, fails or is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ENVIRONMENT = {
    "WANDB_API_KEY": "correct-horse-battery",
    "HF_TOKEN": "hf_" + "A1b2C3d4" * 4,
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG+bPxRfiCY",
    "JUDGE_PASSWORD": "tr0ub4dor'&3\nsecond line of it",
}
IN_RECIPE = "only-in-the-recipe-9"
UNKNOWN = ("sk-proj-" + "Zy9x8W7v" * 4, "AKIAIOSFODNN7EXAMPLE", "ghp_" + "Q1w2E3r4" * 5)
"""Tokens that only their shape tells."""
IN_URL = "url-pass-word"

PLANTED = [*(line for value in ENVIRONMENT.values() for line in value.splitlines()), IN_RECIPE, *UNKNOWN, IN_URL]

LEAKY = f'''
import logging
import os
import sys
from dataclasses import replace

import areal_lit
from areal_lit.contracts import Callback, Reward, RunLogger
from areal_lit_workflows.single_turn import SingleTurn

NAMES = {sorted(ENVIRONMENT)!r}


def everything(api_key="{IN_RECIPE}"):
    known = [os.environ[name] for name in NAMES]
    unknown = {[token[::-1] for token in UNKNOWN]!r}
    url = "https://user:" + "{IN_URL}" + "@host/v1"
    return " ".join([api_key, *known, *map(repr, known), *(token[::-1] for token in unknown), url])


class Judge(Reward):
    """Says what it should not.

    Args:
        api_key: of a service.
        is_failing: raise instead of scoring.
    """

    def __init__(self, *, api_key: str, is_failing: bool = False) -> None:
        self.api_key = api_key
        self.is_failing = is_failing

    def score(self, trajectory):
        print("judge", everything(self.api_key))
        os.write(2, everything(self.api_key).encode() + b"\\n")
        if self.is_failing:
            raise PermissionError("cannot log in with " + everything(self.api_key))
        return 1.0


class Leaking(SingleTurn):
    """Writes secrets into completions, and prints them in the controller."""

    async def run(self, prompt, episode):
        print("workflow", everything())
        return replace(await super().run(prompt, episode), text=everything())


class Telling(Callback):
    """Tells secrets in the controller's log, and on ranks."""

    @areal_lit.hookimpl
    def step_end(self, step):
        logging.getLogger("areal_lit.telling").warning("step %d: %s", step, everything())

    @areal_lit.hookimpl
    def before_optimizer_step(self):
        print("rank", everything(), file=sys.stderr)


class Writing(RunLogger):
    """Writes down the recipe that it is given."""

    def setup(self, run_dir, config, step):
        (run_dir / "given.txt").write_text(repr(config))

    def metrics(self, step, values):
        pass
'''


def areal_lit(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "leaky.py").write_text(LEAKY)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "areal_lit", *arguments],
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path, "COLUMNS": "1000"},
        cwd=tmp_path, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


def recipe(tmp_path: Path, *, is_failing: bool) -> str:
    judge = {"class_path": "leaky.Judge", "init_args": {"api_key": IN_RECIPE, "is_failing": is_failing}}
    leaky = {
        "name": "leaky", "runs_dir": str(tmp_path / "runs"), "max_steps": 2, "reward": judge,
        "workflow": {"class_path": "leaky.Leaking"}, "rewarding": {"on_failure": "raise"},
        "callbacks": [{"class_path": "leaky.Telling"}, {"class_path": "progress"}],
        "loggers": [{"class_path": "csv"}, {"class_path": "samples"}, {"class_path": "leaky.Writing"}],
        "rollout": {"groups_per_step": 2, "samples_per_group": 2},
    }  # fmt: skip
    (tmp_path / "leaky.yaml").write_text(yaml.safe_dump(leaky))
    return str(tmp_path / "leaky.yaml")


def surviving(text: str) -> list[str]:
    return [secret for secret in PLANTED if secret in text]


def check_nothing_survives(run: Path, done: subprocess.CompletedProcess[str]) -> None:
    assert surviving(done.stdout + done.stderr) == []
    written = {path: surviving(path.read_bytes().decode(errors="replace")) for path in run.rglob("*") if path.is_file()}
    assert {str(path): found for path, found in written.items() if found} == {}


@pytest.mark.slow
def test_a_run_that_finishes(tmp_path: Path) -> None:
    done = areal_lit(tmp_path, "fit", "--config", "quickstart", "--config", recipe(tmp_path, is_failing=False))
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "leaky"
    check_nothing_survives(run, done)
    assert "workflow ***" in done.stdout, "a line is kept, only what is secret is hidden"
    assert "judge ***" in (run / "logs" / "reward.log").read_text()
    assert "rank ***" in (run / "logs" / "policy-0.log").read_text()
    assert "step 1: ***" in (run / "logs" / "controller.log").read_text()
    assert "'api_key': '***'" in (run / "given.txt").read_text()
    assert '"completion":"***' in (run / "samples.jsonl").read_text()
    shown = areal_lit(tmp_path, "samples", str(run))
    assert surviving(shown.stdout) == []


@pytest.mark.slow
def test_a_run_that_fails(tmp_path: Path) -> None:
    done = areal_lit(tmp_path, "fit", "--config", "quickstart", "--config", recipe(tmp_path, is_failing=True))
    assert done.returncode == 1
    check_nothing_survives(tmp_path / "runs" / "leaky", done)
    assert "cannot log in with ***" in done.stderr
    log = (tmp_path / "runs" / "leaky" / "logs" / "controller.log").read_text()
    assert "Traceback" in log
    assert "cannot log in with ***" in log


def test_a_recipe_that_is_refused_printed_or_copied_from_a_run(tmp_path: Path) -> None:
    config = recipe(tmp_path, is_failing=False)
    wrong = areal_lit(tmp_path, "validate", "--config", "quickstart", "--config", config, "--reward.api_key.x=1")
    assert wrong.returncode == 2
    assert "reward.init_args.api_key is '***', which takes no further keys" in wrong.stderr
    assert surviving(wrong.stdout + wrong.stderr) == []
    shown = areal_lit(tmp_path, "fit", "--config", "quickstart", "--config", config, "--print_config")
    assert surviving(shown.stdout) == []
    (tmp_path / "shown.yaml").write_text(shown.stdout)
    again = areal_lit(tmp_path, "validate", "--config", str(tmp_path / "shown.yaml"))
    assert again.returncode == 2
    assert "reward.init_args.api_key: '***' stands for a secret that was hidden; write the secret" in again.stderr
