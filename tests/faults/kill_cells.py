"""A cell of the kill matrix: a run that is struck in one phase, and what its directory and this machine hold then."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kill_run import GROUPS_PER_STEP, MAX_STALENESS, NUM_EPOCHS, NUM_PROMPTS, NUM_STEPS, due_before
from run_processes import RUN_TIMEOUT_S, marked, what_stays

PHASES = {
    "wait_batch": 5, "prepare": 5, "train": 5, "sync_weights": 5, "evaluate": 6, "checkpoint": 6, "writing": 4,
}  # fmt: skip
"""Each phase with the step at which it is struck."""

VICTIMS = ("rank", "engine", "reward", "controller", "fork_server")
DEATHS = {
    "rank": "policy rank 0 was killed, exit code -9",
    "engine": "engine-0 rank 0 was killed, exit code -9",
    "fork_server": "(policy|engine-0) rank 0 was killed",
}
"""How the error begins that ends the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How an attempt ended.

    Args:
        code: exit status of the controller.
        raised: type of the exception that ended it; empty for none, None when it had no time to tell.
        shared: files in shared memory that the rank had mapped when the blow fell.
        left: processes that stayed after the controller.
    """

    code: int
    raised: str | None
    message: str
    shared: list[str]
    left: list[str]


def attempt(directory: Path, *strike: object) -> End:
    """Start the run in this directory, or go on with it, and wait for its end.

    Args:
        strike: phase, step, victim and delay in seconds; none at all for a run that is left alone.
    """
    command = [sys.executable, "-c", "import kill_run; kill_run.main()", str(directory), *map(str, strike)]
    num_before = len(history(directory))
    with (directory / "output.txt").open("ab") as output:
        controller = subprocess.Popen(command, env=marked(directory), stdout=output, stderr=subprocess.STDOUT)
    try:
        controller.wait(RUN_TIMEOUT_S)
    finally:
        controller.kill()
        left = what_stays(directory)
    told = {key: value for line in history(directory)[num_before:] for key, value in line.items()}
    return End(
        code=controller.returncode, raised=told.get("raised"), message=told.get("message", ""),
        shared=told.get("shared", []), left=left,
    )  # fmt: skip


def history(directory: Path) -> list[dict[str, Any]]:
    """All that was written down, in order."""
    file = directory / "history.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def trained(directory: Path) -> list[dict[str, Any]]:
    """The groups that the present weights come from: a resume forgets the steps after its checkpoint."""
    groups: list[dict[str, Any]] = []
    for line in history(directory):
        if "begins_after" in line:
            groups = [group for group in groups if group["step"] <= line["begins_after"]]
        elif "step" in line:
            groups.append(line)
    return groups


def metrics(directory: Path, name: str) -> list[str]:
    """A column of metrics.csv."""
    with (directory / "run" / "metrics.csv").open() as file:
        return [row[name] for row in csv.DictReader(file)]


def check_nothing_lost(directory: Path) -> None:
    """The run trained every prompt once an epoch, on tokens that were young enough, with true rewards."""
    groups = trained(directory)
    prompts = {group["prompt"] for group in groups}
    assert len(prompts) == NUM_PROMPTS
    seen = Counter((group["epoch"], group["prompt"]) for group in groups)
    assert seen == Counter({(epoch, prompt): 1 for epoch in range(NUM_EPOCHS) for prompt in prompts})
    assert Counter(group["step"] for group in groups) == dict.fromkeys(range(1, NUM_STEPS + 1), GROUPS_PER_STEP)
    staleness = [value for group in groups for value in group["staleness"]]
    assert min(staleness) >= 0
    assert max(staleness) <= MAX_STALENESS
    assert all(reward >= 1 for group in groups for reward in group["rewards"])
    assert metrics(directory, "step") == [str(step) for step in range(1, NUM_STEPS + 1)]


def check_cell(directory: Path, phase: str, victim: str, *, delay_s: float = 0.0) -> None:
    """Strike a process in a phase: the run ends or goes on as it should, leaves nothing, and nothing is lost."""
    end = attempt(directory, phase, PHASES[phase], victim, delay_s)
    assert end.left == []
    if victim == "reward":
        assert (end.code, end.raised) == (0, "")
        assert sum(map(float, metrics(directory, "reward/retries"))) == 1
        assert sum(map(float, metrics(directory, "reward/unscored"))) == 0
    elif victim == "controller":
        assert (end.code, end.raised) == (-9, None)
        assert end.shared
        assert not any(map(os.path.exists, end.shared))
        check_goes_on(directory, due_before(PHASES[phase]))
    else:
        assert end.raised == "ProcessDied"
        assert re.match(DEATHS[victim], end.message)
        check_goes_on(directory, due_before(PHASES[phase]))
    check_nothing_lost(directory)


def check_goes_on(directory: Path, saved: int) -> None:
    """Resumed, the run starts from the checkpoint of step ``saved`` or a later one, and comes to its end."""
    end = attempt(directory)
    assert (end.code, end.raised, end.left) == (0, "", [])
    starts = [line["begins_after"] for line in history(directory) if "begins_after" in line]
    assert starts[0] == 0
    assert starts[-1] >= saved
