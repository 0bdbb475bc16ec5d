"""A reward and a workflow that do what the prompt says, be it a crash. Importable, so that they travel to workers."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from areal_lit.contracts import Reward, Workflow
from areal_lit.types import Prompt, Trajectory


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
            stream.write("megabytes\n" * 120_000)
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

    async def masks(self, trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, loss_mask=np.zeros_like(trajectory.loss_mask))

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
        """The first sample of all for longer than anybody waits, the others for nobody."""
        if (trajectory.prompt.prompt_id, trajectory.sample) == (0, 0):
            time.sleep(6)  # noqa: ASYNC251 - that is the fault
        return trajectory
