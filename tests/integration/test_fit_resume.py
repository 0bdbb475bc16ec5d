"""Whole runs that are resumed: nothing is lost, repeated or different."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from acting_callbacks import AtStep
from fit_runs import learned, rows, samples, trainer

from areal_lit import hookimpl
from areal_lit.cli.main import main
from areal_lit.contracts import Callback
from areal_lit.trainer import Trainer


class Draws(Callback):
    """Draws a number from every global generator at each step; its state is all of them."""

    def __init__(self) -> None:
        self.drawn: list[list[float]] = []

    @hookimpl
    def step_end(self) -> None:
        self.drawn.append([random.random(), float(np.random.rand()), float(torch.rand(()))])

    def state_dict(self) -> Mapping[str, Any]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.drawn = state["drawn"]


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.mark.slow
def test_deterministic_runs_repeat_and_resume_bit_for_bit(tmp_path: Path) -> None:
    options = ("deterministic=true", "rollout.max_staleness=0", "checkpoint.every_steps=3", "checkpoint.keep_last=1",
               "checkpoint.best={set: arithmetic}", "evaluation={every_steps: 2, max_prompts: 8}", "max_steps=7",
               "policy.optimizer.init_args.warmup_steps=2")  # fmt: skip
    stop = AtStep(5, lambda: os.kill(os.getpid(), signal.SIGTERM))

    def run(name: str, *callbacks: Callback, seed: int, resume: str | None = None) -> Path:
        seed_everything(seed)
        made = trainer("quickstart_inline", tmp_path, *options, f"name={name}")
        made.callbacks = [Draws(), *callbacks]
        return made.fit(resume=resume)

    whole = run("whole", seed=1)
    with pytest.raises(KeyboardInterrupt):
        run("parts", stop, seed=1)
    parts = run("parts", seed=2, resume="auto")
    assert learned(whole) == learned(parts)
    rates = [float(row["train/lr"]) for row in rows(whole)]
    assert rates.index(max(rates)) == 1, "it resumes in the decay, past the warm-up"
    names, states = zip(*map(kept, (whole, parts)), strict=True)
    assert names[0] == names[1]
    assert names[0][-1] == "step-00000007"
    assert len(names[0]) == 2, "the newest and the best"
    assert states[0] == states[1]
    assert len(states[0]["components"]["callbacks.0"]["state"]["drawn"]) == 7
    for file in ("hf/model.safetensors", "roles/policy/rank-0.safetensors", "roles/policy/random-0.json"):
        name = Path("checkpoints/step-00000007", file)
        assert (whole / name).read_bytes() == (parts / name).read_bytes()


def kept(run: Path) -> tuple[list[str], dict[str, Any]]:
    """What a run's checkpoints are called, and the state of the newest, but for the run's own name."""
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    state = json.loads((run / "checkpoints" / names[-1] / "state.json").read_text())
    del state["config"]["name"]
    return names, state


@pytest.mark.slow
def test_a_resumed_run_leaves_no_trace_of_the_steps_it_takes_again(tmp_path: Path) -> None:
    options = ("checkpoint={every_steps: 2, keep_last: 0, best: {set: arithmetic, metric: length, mode: min}}",
               "evaluation={every_steps: 1, max_prompts: 1}", "max_steps=5")  # fmt: skip
    run = trainer("quickstart_inline", tmp_path, *options).fit()
    resumed = trainer("quickstart_inline", tmp_path, *options)
    seen: list[int] = []
    resumed.callbacks = [AtStep(3, lambda: seen.extend(int(row["step"]) for row in rows(run)))]
    resumed.fit(resume=str(run / "checkpoints" / "step-00000002"))
    assert seen == [1, 2, 3], "rows past the checkpoint were cut before the first new one"
    assert [int(row["step"]) for row in rows(run)] == [1, 2, 3, 4, 5]
    assert list(dict.fromkeys(sample["step"] for sample in samples(run))) == [1, 2, 3, 4, 5]
    lengths = {int(row["step"]): float(row["eval/arithmetic/length"]) for row in rows(run)}
    best = min(lengths, key=lambda step: (lengths[step], step))
    values = trainer("quickstart_inline", tmp_path, *options, "evaluation.max_prompts=1").evaluate(checkpoint="best")
    assert values["eval/arithmetic/length"] > 0
    again = trainer("quickstart_inline", tmp_path, *options, "max_steps=6")
    started: list[int] = []
    again.callbacks = [Started(started)]
    again.fit(resume="best")
    assert started == [best]


class Started(Callback):
    """Notes the step that a run begins at."""

    def __init__(self, steps: list[int]) -> None:
        self.steps = steps

    @hookimpl
    def fit_start(self, trainer: Trainer) -> None:
        self.steps.append(trainer.step)


@pytest.mark.slow
def test_resume_loses_and_repeats_no_prompt(tmp_path: Path) -> None:
    options = ("data.init_args.num_examples=64", "checkpoint.every_steps=1", "rollout.num_epochs=1",
               "loggers=[{class_path: csv}, {class_path: samples, init_args: {groups_per_step: 4}}]")  # fmt: skip
    trainer("quickstart", tmp_path, *options, "max_steps=5").fit()
    run = trainer("quickstart", tmp_path, *options, "max_steps=null").fit(resume="auto")
    assert rows(run)[-1]["step"] == "16"
    seen: set[object] = set()
    prompts = [str(s["prompt"]) for s in samples(run) if s["prompt_id"] not in seen and not seen.add(s["prompt_id"])]
    assert max(float(row["rollout/staleness_max"]) for row in rows(run)) <= 2
    assert len(prompts) == 64
    assert sorted(seen) == list(range(64))


@pytest.mark.slow
def test_a_finished_run_says_so_and_can_be_gone_back_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("max_steps=2", "checkpoint.every_steps=1")
    checkpoints = trainer("quickstart_inline", tmp_path, *options).fit() / "checkpoints"
    with pytest.raises(ValueError, match=r"nothing is left to train: .* is at step 2 and max_steps is 2; raise max_s"):
        trainer("quickstart_inline", tmp_path, *options).fit(resume="auto")
    config = ["--config", str(checkpoints.parent / "config.yaml")]
    capsys.readouterr()
    assert main(["fit", *config, "--resume", "auto"]) == 2, "a loop that restarts what failed ends here"
    told = capsys.readouterr().err
    assert "nothing is left to train" in told
    assert [word for word in ("failed", "raceback") if word in told] == []
    with pytest.raises(ValueError, match="is at step 2 and max_steps is 1"):
        trainer("quickstart_inline", tmp_path, "max_steps=1").fit(resume="auto")
    with pytest.raises(ValueError, match="seed was 0 and now is 1"):
        trainer("quickstart_inline", tmp_path, "max_steps=3", "seed=1").fit(resume="auto")
    assert yaml.safe_load((checkpoints.parent / "config.yaml").read_text())["seed"] == 0
    trainer("quickstart_inline", tmp_path, *options).fit(resume=str(checkpoints / "step-00000001"))
    assert sorted(path.name for path in checkpoints.iterdir()) == ["abandoned-1", "step-00000001", "step-00000002"]
