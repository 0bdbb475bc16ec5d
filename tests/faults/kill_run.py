"""A small run that writes down every trained group, and kills one of its own processes when told to.

    python -c 'import kill_run; kill_run.main()' DIRECTORY [PHASE STEP VICTIM DELAY_S]

Two epochs of 20 prompts, 4 a step, on the launcher ``local`` with the engine ``transformers``. It resumes what it
finds. Beside the loop's phases there are ``writing``, when all of a checkpoint is on disk but the file that makes it
count, and ``loading``, when a resume has restored one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from fault_parts import Length, small

from areal_lit import Checkpoint, Evaluation, Sampling, Trainer, hookimpl
from areal_lit.contracts import Callback, GroupSpec, Process, ProcessSpec, RunLogger, WorkerGroup
from areal_lit.rewarding import Rewarding
from areal_lit.types import Group, Trajectory
from areal_lit_data.arithmetic import Arithmetic
from areal_lit_inference.transformers import Transformers
from areal_lit_launchers.local import Local
from areal_lit_loggers.csv import Csv

NUM_PROMPTS, NUM_EPOCHS, GROUPS_PER_STEP = 20, 2, 4
NUM_STEPS = NUM_PROMPTS * NUM_EPOCHS // GROUPS_PER_STEP
MAX_STALENESS = 2
CHECKPOINT_EVERY = 2
SCORE_S = 0.02
"""Slow enough for rewards to be what a run mostly waits for."""

HELD_PROMPT = 22
"""Admitted with version 3: its reward is being computed when a blow falls on a reward worker at step 4 or later."""


class History(RunLogger):
    """A line on disk for each start, each group that a step trained on, and how it ended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, lines: Sequence[Mapping[str, Any]]) -> None:
        with self.path.open("a") as file:
            file.write("".join(f"{json.dumps(line)}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())

    def setup(self, run_dir: Path, config: Mapping[str, Any], step: int) -> None:
        self.write([{"begins_after": step}])

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Kept by the `csv` logger."""

    def samples(self, step: int, groups: Sequence[Group]) -> None:
        self.write([
            {
                "step": step,
                "epoch": group.prompt.epoch,
                "prompt": group.prompt.example.prompt,
                "rewards": [trajectory.reward for trajectory in group.trajectories],
                "staleness": [
                    step - 1 - int(version) for t in group.trajectories for version in t.versions[t.loss_mask]
                ],
            }
            for group in groups
        ])  # fmt: skip


class Slow(Length):
    """Takes ``SCORE_S``.

    Args:
        holds: the first call for ``HELD_PROMPT`` writes its process into this file and does not come back.
    """

    def __init__(self, *, holds: Path | None) -> None:
        self.holds = holds

    def score(self, trajectory: Trajectory) -> float:
        time.sleep(SCORE_S)
        if self.holds and trajectory.prompt.prompt_id == HELD_PROMPT:
            with suppress(FileExistsError), self.holds.open("x") as file:
                file.write(f"{os.getpid()}\n")
                file.flush()
                time.sleep(600)
        return super().score(trajectory)


class Known(Local):
    """Remembers which process is which."""

    def start_group(self, spec: GroupSpec) -> WorkerGroup:
        group = super().start_group(spec)
        self.rank = group.ranks[0].child.process
        return group

    def start_process(self, spec: ProcessSpec) -> Process:
        process = super().start_process(spec)
        self.engine = process.child.process
        return process


class Strike(Callback):
    """SIGKILL for one process of the run, within a phase, once the checkpoint due before its step is on disk.

    Args:
        delay_s: from the begin of the phase to the blow.
        victim: ``rank``, ``engine``, ``fork_server`` (the rank's parent), ``controller``, or ``reward``, the worker
            that ``holds`` names.
    """

    def __init__(
        self, *, phase: str, step: int, victim: str, delay_s: float, launcher: Known, holds: Path, history: History
    ) -> None:  # fmt: skip
        self.at = (phase, step)
        self.delay_s = delay_s
        self.victim = victim
        self.launcher = launcher
        self.holds = holds
        self.history = history

    @hookimpl
    def phase(self, name: str, step: int) -> None:
        self.strike_in(name, step)

    @hookimpl
    def checkpoint_load(self, step: int) -> None:
        self.strike_in("loading", step)

    @hookimpl
    def checkpoint_save(self, step: int, directory: Path) -> None:
        if ("writing", step) == self.at:
            sys.addaudithook(partial(self.strike_before, str(directory / "complete.json")))

    def strike_before(self, file: str, event: str, arguments: Sequence[object]) -> None:
        """All else of the checkpoint is on disk by then."""
        if event == "open" and str(arguments[0]) == file and arguments[1] == "w":
            self.strike_in(*self.at)

    def strike_in(self, name: str, step: int) -> None:
        if (name, step) == self.at and self.delay_s:
            threading.Timer(self.delay_s, self.strike).start()
        elif (name, step) == self.at:
            self.strike()

    def strike(self) -> None:
        if due := due_before(self.at[1]):
            whole = self.history.path.parent / "run" / "checkpoints" / f"step-{due:08d}" / "complete.json"
            await_true(whole.exists, f"the checkpoint of step {due} was not written")
        pid = self.pid()
        self.history.write([{"strikes": pid, "shared": shared_files(self.launcher.rank.pid)}])
        os.kill(pid, signal.SIGKILL)

    def pid(self) -> int:
        if self.victim == "reward":
            return self.busy_worker()
        rank = self.launcher.rank.pid
        known = {
            "rank": rank, "engine": self.launcher.engine.pid, "fork_server": psutil.Process(rank).ppid(),
            "controller": os.getpid(),
        }  # fmt: skip
        return known[self.victim]

    def busy_worker(self) -> int:
        await_true(
            lambda: self.holds.exists() and self.holds.read_text().endswith("\n"),
            f"the reward of prompt {HELD_PROMPT} was not asked for",
        )
        return int(self.holds.read_text())


def await_true(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{otherwise} within 30 s")
        time.sleep(0.01)


def due_before(step: int) -> int:
    """The last step before this one after which a checkpoint is due; 0 for none."""
    return (step - 1) // CHECKPOINT_EVERY * CHECKPOINT_EVERY


def shared_files(pid: int) -> list[str]:
    """What a process maps of shared memory."""
    return [file.path for file in psutil.Process(pid).memory_maps() if file.path.startswith("/dev/shm/")]


def trainer(directory: Path, history: History, strike: Sequence[str]) -> Trainer:
    launcher, holds, callbacks = Known(hang_timeout_s=60.0), directory / "held", []
    if strike:
        phase, step, victim, delay_s = strike
        callbacks.append(
            Strike(
                phase=phase, step=int(step), victim=victim, delay_s=float(delay_s), launcher=launcher, holds=holds,
                history=history,
            )
        )  # fmt: skip
    return small(
        directory,
        data=Arithmetic(num_examples=NUM_PROMPTS, num_eval=2),
        reward=Slow(holds=holds if "reward" in strike else None),
        inference=Transformers(max_slots=32, num_threads=1),
        launcher=launcher,
        max_steps=None,
        rollout={
            "groups_per_step": GROUPS_PER_STEP, "max_staleness": MAX_STALENESS, "num_epochs": NUM_EPOCHS,
            "sampling": Sampling(max_new_tokens=4),
        },
        rewarding=Rewarding(num_workers=2, timeout_s=60.0, batch_size=1),
        evaluation=Evaluation(every_steps=CHECKPOINT_EVERY),
        checkpoint=Checkpoint(every_steps=CHECKPOINT_EVERY),
        loggers=[Csv(), history],
        callbacks=callbacks,
    )  # fmt: skip


def main() -> None:
    directory, *strike = sys.argv[1:]
    history = History(Path(directory) / "history.jsonl")
    try:
        trainer(Path(directory), history, strike).fit(resume="auto")
    except Exception as error:
        history.write([{"raised": type(error).__name__, "message": str(error)}])
        raise
    history.write([{"raised": ""}])
