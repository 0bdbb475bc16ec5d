"""Whole runs: learning, determinism, resume, faults. Real engine, real processes, the quickstart's sizes."""

from __future__ import annotations

import csv
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import yaml

from areal_lit import hookimpl, recipes
from areal_lit.contracts import Callback, ProcessDied
from areal_lit.trainer import Trainer

SMALL = (
    "rollout.groups_per_step=4", "rollout.samples_per_group=4", "policy.num_threads=1",
    "inference.init_args.num_threads=1",
)  # fmt: skip


def trainer(recipe: str, directory: Path, *overrides: str) -> Trainer:
    return recipes.load(recipe, overrides=[f"runs_dir={directory}", *SMALL, *overrides])


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def learned(run: Path) -> list[dict[str, str]]:
    """The columns that must repeat exactly: all but times and queue lengths."""
    varying = ("time/", "sync/", "reward/", "rollout/running", "rollout/ready")
    return [{k: v for k, v in row.items() if not k.startswith(varying)} for row in rows(run)]


def samples(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_run_leaves_a_complete_directory(tmp_path: Path) -> None:
    run = trainer("quickstart", tmp_path, "max_steps=3").fit()
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["algorithm"]["class_path"] == "areal_lit_algorithms.grpo.GRPO"
    assert [row["step"] for row in rows(run)] == ["1", "2", "3"]
    assert {"rollout/reward", "rollout/staleness", "train/grad_norm", "time/train"} <= set(rows(run)[0])
    assert {sample["step"] for sample in samples(run)} == {1, 2, 3}
    assert (run / "plots" / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert {log.name for log in (run / "logs").iterdir()} >= {"policy-0.log", "engine-0.log", "controller.log"}
    from transformers import AutoModelForCausalLM, AutoTokenizer

    export = run / "checkpoints" / "step-00000003" / "hf"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(export), AutoTokenizer.from_pretrained(export)
    assert model.config.vocab_size >= len(tokenizer)


@pytest.mark.slow
def test_deterministic_runs_repeat_and_resume_bit_for_bit(tmp_path: Path) -> None:
    options = ("deterministic=true", "rollout.max_staleness=0", "checkpoint.every_steps=3", "checkpoint.keep_last=0")
    whole = trainer("quickstart_inline", tmp_path, *options, "max_steps=6", "name=whole").fit()
    trainer("quickstart_inline", tmp_path, *options, "max_steps=3", "name=parts").fit()
    parts = trainer("quickstart_inline", tmp_path, *options, "max_steps=6", "name=parts").fit(resume="auto")
    assert learned(whole) == learned(parts)
    name = Path("checkpoints/step-00000006/hf/model.safetensors")
    assert (whole / name).read_bytes() == (parts / name).read_bytes()


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


class AtStep(Callback):
    """Do something at the end of a step."""

    def __init__(self, step: int, do: Callable[[], None]) -> None:
        self.step = step
        self.do = do

    @hookimpl
    def step_end(self, step: int) -> None:
        if step == self.step:
            self.do()


def kill(name: str, number: int) -> None:
    """Send a signal to the child whose log has this name."""
    for child in psutil.Process().children(recursive=True):
        if any(Path(file.path).name == name for file in child.open_files()):
            os.kill(child.pid, number)
            return
    raise AssertionError(f"no child writes {name}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("log", "number", "says"),
    [
        ("policy-0.log", signal.SIGKILL, "policy rank 0 "),
        ("engine-0.log", signal.SIGKILL, "engine-0 rank 0 "),
        ("policy-0.log", signal.SIGSTOP, "policy rank 0 "),
    ],
)
def test_a_dead_or_hung_process_ends_the_run_within_seconds(tmp_path: Path, log: str, number: int, says: str) -> None:
    run = trainer("quickstart", tmp_path, "max_steps=2000", "launcher.init_args.hang_timeout_s=4")
    killed_at: list[float] = []

    def strike() -> None:
        killed_at.append(time.monotonic())
        kill(log, number)

    run.callbacks = [AtStep(3, strike)]
    with pytest.raises(ProcessDied, match=says):
        run.fit()
    assert time.monotonic() - killed_at[0] < 20


@pytest.mark.slow
def test_an_interrupted_run_finishes_its_step_saves_and_resumes(tmp_path: Path) -> None:
    run = trainer("quickstart", tmp_path, "max_steps=2000")
    run.callbacks = [AtStep(4, lambda: os.kill(os.getpid(), signal.SIGTERM))]
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    assert (tmp_path / "quickstart" / "checkpoints" / "step-00000004" / "complete.json").exists()
    again = trainer("quickstart", tmp_path, "max_steps=6").fit(resume="auto")
    assert [row["step"] for row in rows(again)] == [str(step) for step in range(1, 7)]


@pytest.mark.slow
def test_evaluation_of_a_checkpoint_is_that_of_the_run(tmp_path: Path) -> None:
    options = ("evaluation.max_prompts=20", "evaluation.sampling={temperature: 0.0, max_new_tokens: 6}")
    run = trainer("quickstart", tmp_path, "max_steps=2", "evaluation.at_end=true", *options).fit()
    (name,) = [key for key in rows(run)[-1] if key.startswith("eval/") and key.endswith("/pass@1")]
    checkpoint = run / "checkpoints" / "step-00000002"
    values = trainer("quickstart", tmp_path, *options).evaluate(checkpoint=str(checkpoint))
    assert values[name] == float(rows(run)[-1][name])


@pytest.mark.slow
def test_a_failing_hook_ends_the_run_and_is_named(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("boom")

    run = trainer("quickstart_inline", tmp_path, "max_steps=5")
    run.callbacks = [AtStep(2, fail)]
    with pytest.raises(RuntimeError, match=r"step_end.*AtStep.*boom"):
        run.fit()
    assert threading.active_count() < 50


def test_a_second_run_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "quickstart").mkdir()
    (tmp_path / "quickstart" / "config.yaml").write_text("{}")
    with pytest.raises(FileExistsError, match="--resume auto"):
        trainer("quickstart", tmp_path).fit()


def test_every_recipe_is_valid_and_says_what_it_needs() -> None:
    for name, file in recipes.shipped().items():
        text = file.read_text()
        head = [line for line in text.splitlines() if line.startswith("#")]
        assert any(line.startswith("# Hardware:") for line in head), name
        assert any("Time:" in line for line in head), name
        assert any(line.startswith("# Expect:") for line in head), name
        assert recipes.load(name).validate() == [], name
