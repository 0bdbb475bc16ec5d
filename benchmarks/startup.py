"""Seconds from the start of a process to the end of its first training step: `areal-lit fit` and TRL, interleaved.

The rows are those of ``against_trl.py``. Ours is broken down by stage, in seconds since the process was started, and
both sides' CPU seconds are those of a run of two steps with all its processes.

Usage: python benchmarks/startup.py --trl-python ENV/bin/python [--repeats 3] [--rows 0 1 2]
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from against_trl import HERE, ROWS, Measured, fit_command, interleaved, parsed, theirs

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
def cpu_seconds(measured: Measured) -> Iterator[None]:
    """Adds ``cpu_s``: what all processes used that ended within."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    yield
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    measured["cpu_s"] = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def trl(row: tuple[int, int, int], python: str) -> Measured:
    measured: Measured = {}
    with cpu_seconds(measured):
        first_step_s = theirs((*row, STEPS), python)["first_step_s"]
    return measured | {"first step": first_step_s}


def ours(row: tuple[int, int, int], staleness: int, own: list[str]) -> Measured:
    """Seconds until each stage ended, and CPU seconds."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "stages"
        stages = {"class_path": "startup.Stages", "init_args": {"path": str(path)}}
        command = [
            *fit_command((*row, STEPS), staleness, Path(directory)),
            "--callbacks", json.dumps([{"class_path": "progress"}, stages]), *own,
        ]  # fmt: skip
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
        measured: Measured = {}
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
    options, own = parsed(__doc__)
    print(f"| prompts x samples x longest | who | {' | '.join(STAGES)} | CPU s |\n|---|---|---|---|---|---|---|")
    for row in (ROWS[index][:3] for index in options.rows):
        sides: dict[str, Callable[[], Measured]] = {
            "synchronous": partial(ours, row, 0, own), "max_staleness 2": partial(ours, row, 2, own)
        }  # fmt: skip
        if options.trl_python:
            sides = {"TRL": partial(trl, row, options.trl_python), **sides}
        for who, results in interleaved(options.repeats, sides).items():
            median = {key: statistics.median(r[key] for r in results) for key in results[0]}
            cells = [f"{median[stage]:.2f}" if stage in median else "-" for stage in STAGES]
            print(f"| {' x '.join(map(str, row))} | {who} | {' | '.join(cells)} | {median['cpu_s']:.1f} |", flush=True)


if __name__ == "__main__":
    main()
