"""Whole runs that learn from data alone."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from fit_runs import rows

from areal_lit import recipes
from areal_lit.text import TextCodec
from areal_lit.token_batch import TokenBatch
from areal_lit.trainer import Trainer
from areal_lit.types import Prompt, Trajectory
from areal_lit_algorithms.sft import SFT


class Noting(SFT):
    """SFT that notes what it is given to prepare, and sends a signal while it encodes a row."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[float] = []
        self.num_rows = 0

    def encode(self, prompt: Prompt, codec: TextCodec) -> list[Trajectory]:
        self.num_rows += 1
        if self.num_rows == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().encode(prompt, codec)

    def prepare(self, batch: TokenBatch) -> TokenBatch:
        assert set(batch["source"].tolist()) == {0}
        self.steps.append(batch.scalars["step"])
        return super().prepare(batch)


def offline(directory: Path, *overrides: str) -> tuple[Trainer, Noting]:
    options = [f"runs_dir={directory}", "launcher=inline", "rollout.groups_per_step=4", *overrides]
    run = recipes.load("quickstart_sft", overrides=options)
    run.algorithm = algorithm = Noting()
    return run, algorithm


@pytest.mark.slow
def test_offline_rows_that_were_drawn_are_trained_on_whatever_comes(tmp_path: Path) -> None:
    run, algorithm = offline(tmp_path, "max_steps=5")
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    assert run.step == 2
    assert algorithm.steps == [0.0, 1.0]
    state = json.loads((tmp_path / run.name / "checkpoints" / "step-00000002" / "state.json").read_text())
    assert state["batches"]["stream"]["next_id"] == 8


@pytest.mark.slow
def test_offline_evaluation_prepares_as_training_does(tmp_path: Path) -> None:
    options = ("max_steps=2", "evaluation={every_steps: 2, max_prompts: 1}", "checkpoint.at_end=false")
    run, algorithm = offline(tmp_path, *options)
    path = run.fit()
    assert algorithm.steps == [0.0, 1.0, 2.0]
    assert float(rows(path)[-1]["eval/arithmetic/loss"]) > 0
