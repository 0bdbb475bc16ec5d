"""A small run, and what misbehaves in it on purpose. Importable, so that it travels to ranks and workers."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from areal_lit import Checkpoint, Role, Rollout, Sampling, Trainer, hookimpl
from areal_lit.contracts import Callback, DataModule, Launcher, Reward, RunLogger, Source, Workflow
from areal_lit.testing import tiny_spec
from areal_lit.text import TextCodec
from areal_lit.types import Example, Group, Prompt, Trajectory
from areal_lit_algorithms.grpo import GRPO
from areal_lit_data.arithmetic import Arithmetic
from areal_lit_inference.transformers import Transformers
from areal_lit_launchers.inline import Inline
from areal_lit_launchers.local import Local
from areal_lit_loggers.csv import Csv
from areal_lit_optimizers.adamw import AdamW
from areal_lit_single.strategy import Single
from areal_lit_transports.file import File
from areal_lit_transports.memory import Memory
from areal_lit_workflows.single_turn import SingleTurn


def small(
    directory: Path, *, launcher: Launcher | None = None, rollout: Mapping[str, Any] | None = None, **parts: Any
) -> Trainer:
    """A run of a tiny model, two groups of two samples a step; in this process unless a launcher is given."""
    settings = {
        "groups_per_step": 2, "samples_per_group": 2, "max_staleness": 0, "wait_timeout_s": 60.0,
        "sampling": Sampling(max_new_tokens=3), **(rollout or {}),
    }  # fmt: skip
    given = {
        "data": Rows(["good"] * 64), "reward": Length(), "workflow": SingleTurn(), "max_steps": 3, "callbacks": [],
        "loggers": [Csv()], "inference": Transformers(max_slots=16), "checkpoint": Checkpoint(export_hf=False),
        "transport": File() if isinstance(launcher, Local) else Memory(), **parts,
    }  # fmt: skip
    return Trainer(
        algorithm=GRPO(decoupled=False, old="behaviour"),
        policy=Role(model=tiny_spec(directory / "model"), strategy=Single(), optimizer=AdamW(lr=1e-3), num_threads=1),
        launcher=launcher or Inline(),
        rollout=Rollout(**settings),
        runs_dir=str(directory),
        **given,
    )


class Rows(DataModule):
    """These prompts, and these for evaluation."""

    def __init__(self, prompts: Sequence[str], *, evaluation: Sequence[str] | None = None) -> None:
        self.prompts = prompts
        self.held_out = evaluation

    def setup(self, codec: TextCodec) -> None: ...

    def train(self) -> Mapping[str, Source]:
        return {"rows": Source(examples=[Example(prompt=prompt) for prompt in self.prompts])}

    def evaluation(self) -> Mapping[str, Source]:
        if self.held_out is None:
            return {}
        return {"held_out": Source(examples=[Example(prompt=prompt) for prompt in self.held_out])}


class Trained(RunLogger):
    """Remembers what was trained on, and every number."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.steps: list[Mapping[str, float]] = []

    def setup(self, run_dir: Path, config: Mapping[str, Any], step: int) -> None: ...

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.steps.append(values)

    def samples(self, step: int, groups: Sequence[Group]) -> None:
        self.groups += groups

    @property
    def prompts(self) -> list[str]:
        return sorted(str(group.prompt.example.prompt) for group in self.groups)

    def total(self, name: str) -> float:
        return sum(values.get(name, 0.0) for values in self.steps)


class Length(Reward):
    def score(self, trajectory: Trajectory) -> float:
        return float(len(trajectory.text))


class AtStep(Callback):
    """Do something at the end of a step."""

    def __init__(self, step: int, do: Callable[[], object]) -> None:
        self.step = step
        self.do = do

    @hookimpl
    def step_end(self, step: int) -> None:
        if step == self.step:
            self.do()


class InPhase(Callback):
    """Do something at the beginning of a phase of a step."""

    def __init__(self, phase: str, step: int, do: Callable[[], object]) -> None:
        self.at = (phase, step)
        self.do = do

    @hookimpl
    def phase(self, name: str, step: int) -> Any:
        return self.entered() if (name, step) == self.at else None

    @contextmanager
    def entered(self) -> Any:
        self.do()
        yield


def gone(pid: int, within_s: float = 10.0) -> bool:
    """Whether a process ends soon."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


# --- rewards -------------------------------------------------------------------------------------


class Misbehaving(Reward):
    """Does what the prompt says, after a look at how the calls before it left the process.

    Args:
        pids: a file of processes that were started.
    """

    def __init__(self, pids: Path) -> None:
        self.pids = pids

    def setup(self) -> None:
        self.home = os.getcwd()

    def score(self, trajectory: Trajectory) -> Any:
        self.check_surroundings()
        return getattr(self, str(trajectory.prompt.example.prompt))()

    def check_surroundings(self) -> None:
        assert os.getcwd() == self.home
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        print("scoring")
        print("scoring", file=sys.stderr)
        os.write(1, b"scoring\n")

    def note(self, pid: int) -> float:
        with self.pids.open("a") as file:
            file.write(f"{pid}\n")
        return 1.0

    def good(self) -> float:
        return 1.0

    def hangs(self) -> float:
        self.daemon()
        return float(sum(range(10**13)))

    def raises(self) -> float:
        raise LookupError("no such answer")

    def exits(self) -> float:
        sys.exit(3)

    def vanishes(self) -> float:
        self.daemon()
        os._exit(0)

    def devours(self) -> float:
        """Memory, up to a limit as a container has one."""
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + 2**26, limits[1]))
        try:
            return float(len([bytearray(2**23) for _ in range(64)]))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)

    def nan(self) -> float:
        return float("nan")

    def inf(self) -> float:
        return float("-inf")

    def text(self) -> Any:
        return "1.0"

    def none(self) -> Any:
        return None

    def array(self) -> Any:
        return np.zeros(3)

    def loud(self) -> float:
        for stream in (sys.stdout, sys.stderr):
            stream.write("megabytes\n" * 300_000)
        return 1.0

    def daemon(self) -> float:
        return self.note(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)

    def forks(self) -> float:
        if pid := os.fork():
            return self.note(pid)
        time.sleep(1000)
        return 0.0

    def splits(self) -> float:
        """Its child comes back from the reward as it does itself."""
        pid = os.fork()
        return self.note(pid) if pid else 2.0

    def closes(self) -> float:
        sys.stdout.close()
        sys.stderr.close()
        return 1.0

    def unplugs(self) -> float:
        os.close(1)
        os.close(2)
        return 1.0

    def moves(self) -> float:
        os.chdir("/")
        return 1.0

    def deafens(self) -> float:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        return 1.0


# --- workflows -----------------------------------------------------------------------------------


class Wayward(Workflow):
    """Does what the prompt says, or the given act on every prompt."""

    def __init__(self, act: str = "") -> None:
        self.act = act

    async def run(self, prompt: Prompt, episode: Any) -> Any:
        completion = await episode.generate(episode.prompt_ids)
        trajectory = episode.trajectory(prompt, episode.prompt_ids, completion)
        return await getattr(self, self.act or str(prompt.example.prompt))(trajectory)

    async def good(self, trajectory: Trajectory) -> Trajectory:
        return trajectory

    async def raises(self, trajectory: Trajectory) -> Any:
        raise LookupError("no such tool")

    async def exits(self, trajectory: Trajectory) -> Any:
        sys.exit(3)

    async def hangs(self, trajectory: Trajectory) -> Any:
        await asyncio.get_running_loop().create_future()

    async def none(self, trajectory: Trajectory) -> Any:
        return None

    async def text(self, trajectory: Trajectory) -> Any:
        return trajectory.text

    async def short(self, trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, logprobs=trajectory.logprobs[:-1])

    async def nan(self, trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, logprobs=np.where(trajectory.loss_mask, np.nan, 0).astype(np.float32))

    async def outside(self, trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, token_ids=np.where(trajectory.loss_mask, 64, trajectory.token_ids))

    async def blocks(self, trajectory: Trajectory) -> Trajectory:
        time.sleep(1)  # noqa: ASYNC251 - that is the fault
        return trajectory


# --- signals -------------------------------------------------------------------------------------


def signal_group(name: str) -> None:
    """Send a signal to this process and all of its group, as a terminal does."""
    os.killpg(os.getpgrp(), getattr(signal, name))


class SignalIn(Callback):
    """A signal, once or more, at the beginning of a phase.

    Args:
        phase: of the loop.
        step: at which.
        signals: their names.
    """

    def __init__(self, *, phase: str, step: int, signals: list[str]) -> None:
        self.at = (phase, step)
        self.signals = signals

    @hookimpl
    def phase(self, name: str, step: int) -> Any:
        return self.entered() if (name, step) == self.at else None

    @contextmanager
    def entered(self) -> Any:
        for name in self.signals:
            signal_group(name)
        yield


class SignalAtStart(Arithmetic):
    """A signal while the data is loaded and the processes start."""

    def setup(self, codec: TextCodec) -> None:
        signal_group("SIGTERM")


class WaitFor(Callback):
    """The first step ends once a file ``go`` is there; one called ``waits`` tells that it waits.

    Args:
        path: where they are.
    """

    def __init__(self, *, path: str) -> None:
        self.path = Path(path)

    @hookimpl
    def step_end(self) -> None:
        (self.path / "waits").touch()
        deadline = time.monotonic() + 60
        while not (self.path / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
