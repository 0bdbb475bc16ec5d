"""Seconds from the start of a process to the end of its first training step: `areal-lit fit` and TRL, interleaved.

The rows are those of ``against_trl.py``. Ours is broken down by stage, in seconds since the process was started, and
both sides' CPU seconds are those of a run of two steps with all its processes.

Usage: python benchmarks/startup.py --trl-python ENV/bin/python [--repeats 3] [--rows 0 1 2]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from against_trl import HERE, ROWS, fit_command, theirs

from areal_lit import hookimpl
from areal_lit.contracts import Callback

STEPS = 2
STAGES = ("recipe read", "processes ready", "first batch", "first step")


class Stages(Callback):
    """Notes when the stages of a run's start end.

    Args:
        path: file that gets a line ``STAGE SECONDS`` (since the epoch) for each.
    """

    def __init__(self, *, path: str) -> None:
        self.path = path

    def note(self, stage: str) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{time.time()} {stage}\n")

    @hookimpl
    def configure(self, trainer: Any) -> None:
        self.note("recipe read")

    @hookimpl
    def fit_start(self, trainer: Any) -> None:
        self.note("processes ready")

    @hookimpl
    def batch_ready(self, step: int) -> None:
        if step == 0:
            self.note("first batch")

    @hookimpl
    def step_end(self, step: int) -> None:
        if step == 1:
            self.note("first step")


@contextmanager
def cpu_seconds(measured: dict[str, float]) -> Iterator[None]:
    """Adds ``cpu_s``: what all processes used that ended within."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    yield
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    measured["cpu_s"] = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def trl(row: tuple[int, int, int], python: str) -> dict[str, float]:
    measured: dict[str, float] = {}
    with cpu_seconds(measured):
        first_step_s = theirs((*row, STEPS), python)["first_step_s"]
    return measured | {"first step": first_step_s}


def ours(row: tuple[int, int, int], staleness: int, own: list[str]) -> dict[str, float]:
    """Seconds until each stage ended, and CPU seconds."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "stages"
        stages = {"class_path": "startup.Stages", "init_args": {"path": str(path)}}
        command = [
            *fit_command((*row, STEPS), staleness, Path(directory)),
            "--callbacks", json.dumps([{"class_path": "progress"}, stages]), *own,
        ]  # fmt: skip
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
        measured: dict[str, float] = {}
        start = time.time()
        with cpu_seconds(measured):
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        for line in path.read_text().splitlines():
            seconds, _, stage = line.partition(" ")
            measured[stage] = float(seconds) - start
    return measured


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--trl-python", help="interpreter of an environment with trl; without it only ours run")
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--rows", type=int, nargs="*", default=[0, 1, 2])
    options, own = arguments.parse_known_args()
    print(f"| prompts x samples x longest | who | {' | '.join(STAGES)} | CPU s |\n|---|---|---|---|---|---|---|")
    for row in (ROWS[index][:3] for index in options.rows):
        runs: dict[str, list[dict[str, float]]] = {"TRL": [], "synchronous": [], "max_staleness 2": []}
        for _ in range(options.repeats):
            if options.trl_python:
                runs["TRL"].append(trl(row, options.trl_python))
            runs["synchronous"].append(ours(row, 0, own))
            runs["max_staleness 2"].append(ours(row, 2, own))
        for who, results in runs.items():
            if results:
                median = {key: statistics.median(r[key] for r in results) for key in results[0]}
                cells = [f"{median[stage]:.2f}" if stage in median else "-" for stage in STAGES]
                print(
                    f"| {' x '.join(map(str, row))} | {who} | {' | '.join(cells)} | {median['cpu_s']:.1f} |", flush=True
                )


if __name__ == "__main__":
    main()
