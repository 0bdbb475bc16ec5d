"""A small run, and what misbehaves in it on purpose. Importable, so that it travels to ranks and workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from areal_lit import Checkpoint, Role, Rollout, Sampling, Trainer, hookimpl
from areal_lit.contracts import Callback, DataModule, Launcher, Reward, RunLogger, Source
from areal_lit.testing import tiny_spec
from areal_lit.text import TextCodec
from areal_lit.types import Example, Group, Trajectory
from areal_lit_algorithms.grpo import GRPO
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
    """Remembers what was trained on, and the last number of each name and step."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.steps: dict[int, dict[str, float]] = {}

    def setup(self, run_dir: Path, config: Mapping[str, Any], step: int) -> None: ...

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.steps.setdefault(step, {}).update(values)

    def samples(self, step: int, groups: Sequence[Group]) -> None:
        self.groups += groups

    @property
    def prompts(self) -> list[str]:
        return sorted(str(group.prompt.example.prompt) for group in self.groups)

    def total(self, name: str) -> float:
        return sum(values.get(name, 0.0) for values in self.steps.values())


class Length(Reward):
    """One more than the length of the text, so never 0."""

    def score(self, trajectory: Trajectory) -> float:
        return 1.0 + len(trajectory.text)


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
