"""Rewards that sleep, print, break and die, and a scorer of them."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from areal_lit.contracts import GroupReward, Reward
from areal_lit.logs import Logs
from areal_lit.rewarding import Rewarding, Scorer
from areal_lit.testing.reward import completion
from areal_lit.types import Scored, Trajectory, Unscored


def run_forever() -> None:
    """In C, without ever letting go of the interpreter: no signal handler and no other thread can run."""
    sum(range(10**13))


class Scripted(Reward):
    """Does what the completion says."""

    def score(self, trajectory: Trajectory) -> Any:
        acts: dict[str, Callable[[], Any]] = {
            "hang": run_forever,
            "exit": lambda: os._exit(0),
            "segfault": lambda: ctypes.string_at(0),
            "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "raise": lambda: 1 / 0,
            "sys.exit": lambda: sys.exit(3),
            "nan": lambda: float("nan"),
            "inf": lambda: Scored(value=float("inf")),
            "none": lambda: None,
            "text": lambda: "1.0",
            "list": lambda: [1.0],
            "unscored": lambda: Unscored(reason="no gold"),
            "parts": lambda: Scored(value=2.0, parts={"a": 1.0}, metrics={"b": 3.0}),
        }
        act = acts.get(trajectory.text)
        return float(trajectory.sample) if act is None else act()


class Sleepy(Reward):
    def score(self, trajectory: Trajectory) -> float:
        time.sleep(0.2)
        return 1.0


class Loud(Reward):
    def score(self, trajectory: Trajectory) -> float:
        os.write(1, b"noise\n" * 2**20)
        print("reward says hello")
        return 1.0


class Parent(Reward):
    """Starts a child process that would outlive it, and says which."""

    def score(self, trajectory: Trajectory) -> float:
        child = subprocess.Popen(["sleep", "1000"])
        Path(trajectory.prompt.fields["pids"]).write_text(f"{os.getpid()} {child.pid}")
        if trajectory.text == "hang":
            run_forever()
        return 1.0


class Flaky(Reward):
    """Fails on its first call for a trajectory."""

    def score(self, trajectory: Trajectory) -> float:
        marker = Path(trajectory.prompt.fields["marker"])
        if marker.exists():
            return 1.0
        marker.touch()
        raise OSError("service unavailable")


class Broken(Reward):
    def setup(self) -> None:
        raise FileNotFoundError("no such lexicon: words.txt")

    def score(self, trajectory: Trajectory) -> float:
        return 1.0


class Dying(Broken):
    def setup(self) -> None:
        os._exit(7)


class Ranks(GroupReward):
    def score_group(self, trajectories: Any) -> list[float]:
        lengths = sorted(len(each.text) for each in trajectories)
        return [float(lengths.index(len(each.text))) for each in trajectories]


class Unordered(GroupReward):
    """Returns scores in whatever the field says."""

    def score_group(self, trajectories: Any) -> Any:
        return trajectories[0].prompt.fields["kind"](float(each.sample) for each in trajectories)


class Remote(Reward):
    async def score(self, trajectory: Trajectory) -> float:
        errors = {
            "raise": ConnectionError("refused"), "cancel": asyncio.CancelledError("closed"), "exit": SystemExit(3),
            "late": TimeoutError("of its own"),
        }  # fmt: skip
        if trajectory.text in errors:
            raise errors[trajectory.text]
        await asyncio.sleep(60 if trajectory.text == "hang" else 0)
        return 1.0


@contextmanager
def running(reward: Reward, path: Path, *, in_process: bool = False, **settings: Any) -> Iterator[Scorer]:
    scorer = Scorer(
        Rewarding(**settings), rewards={"default": reward}, in_process=in_process, log_dir=path, logs=Logs(max_mib=4)
    )
    scorer.start()
    try:
        yield scorer
    finally:
        scorer.stop()


def texts(*names: str) -> list[Trajectory]:
    return [replace(completion(name), sample=index) for index, name in enumerate(names)]


def metric(scorer: Scorer, name: str) -> float:
    return {each.name: each.value for each in scorer.metrics()}[name]
