"""Whole runs: learning, determinism, resume, faults. Real engine, real processes, the quickstart's sizes."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import yaml

from areal_lit import hookimpl, recipes
from areal_lit.cli.main import main
from areal_lit.contracts import Callback, Death, ProcessDied
from areal_lit.logs import Logs
from areal_lit.text import TextCodec
from areal_lit.token_batch import TokenBatch
from areal_lit.trainer import Trainer
from areal_lit.types import Prompt, Trajectory
from areal_lit.validation import BrokenRules
from areal_lit.weight_sync import WeightSyncError
from areal_lit_algorithms.sft import SFT
from areal_lit_data.arithmetic import Arithmetic
from areal_lit_launchers.inline import Inline

SMALL = (
    "rollout.groups_per_step=4", "rollout.samples_per_group=4", "policy.num_threads=1",
    "inference.init_args.num_threads=1",
)  # fmt: skip


def trainer(recipe: str, directory: Path, *overrides: str) -> Trainer:
    return recipes.load(recipe, overrides=[f"runs_dir={directory}", *SMALL, *overrides])


def leave_a_run(directory: Path) -> None:
    """What tells that a run was here: its recipe and a row of metrics."""
    directory.mkdir(exist_ok=True)
    (directory / "config.yaml").write_text("{}")
    (directory / "metrics.csv").write_text("step\n1\n")


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


class Unforeseen(Arithmetic):
    """Names its evaluation sets only once it is set up."""

    def evaluation_names(self) -> None:
        return None


@pytest.mark.slow
def test_a_best_set_that_does_not_exist_is_told_before_training(tmp_path: Path) -> None:
    run = trainer("quickstart_inline", tmp_path, "checkpoint.best={set: arithmetics}", "evaluation.every_steps=1")
    run.data = Unforeseen()
    with pytest.raises(ValueError, match=r"checkpoint\.best\.set is 'arithmetics', which .* there are: arithmetic"):
        run.fit()


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
    """Send a signal to the rank or engine of this name."""
    for child in psutil.Process().children(recursive=True):
        if child.cmdline()[-1] == name:
            os.kill(child.pid, number)
            return
    raise AssertionError(f"no child is called {name}")


@pytest.mark.slow
@pytest.mark.timeout(120)  # the waits themselves may take 30 minutes
@pytest.mark.parametrize(
    ("name", "number", "says"),
    [
        ("policy-0", signal.SIGKILL, "policy rank 0 "),
        ("engine-0", signal.SIGKILL, "engine-0 rank 0 "),
        ("policy-0", signal.SIGSTOP, "policy rank 0 "),
    ],
)
def test_a_dead_or_hung_process_ends_the_run(tmp_path: Path, name: str, number: int, says: str) -> None:
    run = trainer("quickstart", tmp_path, "max_steps=2000", "launcher.init_args.hang_timeout_s=4")
    run.callbacks = [AtStep(3, lambda: kill(name, number))]
    with pytest.raises(ProcessDied, match=says):
        run.fit()


class Dying(Inline):
    """Learns of a death only after the loop has met its consequence."""

    def setup(self, log_dir: Path, on_death: Callable[[Death], None], logs: Logs) -> None:
        super().setup(log_dir, on_death, logs)
        self.on_death = on_death

    def break_with(self, error: Exception) -> None:
        death = Death(name="engine-0", rank=0, exit_code=-9, reason="ended", log_tail="out of memory")
        threading.Timer(0.3, self.on_death, [death]).start()
        raise error


@pytest.mark.slow
@pytest.mark.parametrize("error", [WeightSyncError("connection lost"), ConnectionResetError("connection lost")])
def test_a_death_is_the_headline_though_a_connection_broke_first(tmp_path: Path, error: Exception) -> None:
    run = trainer("quickstart_inline", tmp_path, "max_steps=2")
    run.launcher = launcher = Dying()
    run.callbacks = [AtStep(1, lambda: launcher.break_with(error))]
    with pytest.raises(ProcessDied, match=r"^engine-0 rank 0 ended, exit code -9\n(.*\n)*out of memory"):
        run.fit()


@pytest.mark.slow
def test_an_interrupted_run_finishes_its_step_saves_and_resumes(tmp_path: Path) -> None:
    run = trainer("quickstart", tmp_path, "max_steps=2000")
    run.callbacks = [AtStep(4, lambda: os.kill(os.getpid(), signal.SIGTERM))]
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    assert (tmp_path / "quickstart" / "checkpoints" / "step-00000004" / "complete.json").exists()
    again = trainer("quickstart", tmp_path, "max_steps=6").fit(resume="auto")
    assert [row["step"] for row in rows(again)] == [str(step) for step in range(1, 7)]


class WhileWaiting(Callback):
    """SIGTERM while the loop waits for the groups of a step."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.is_waiting = False

    @hookimpl
    def phase(self, name: str, step: int) -> AbstractContextManager[None]:
        return self.watched(is_waiting=(name, step) == ("wait_batch", self.step))

    @contextmanager
    def watched(self, *, is_waiting: bool) -> Iterator[None]:
        self.is_waiting = is_waiting
        yield

    @hookimpl
    def group_ready(self) -> None:
        if self.is_waiting:
            self.is_waiting = False
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
def test_a_signal_while_waiting_loses_and_repeats_no_prompt(tmp_path: Path) -> None:
    options = ("data.init_args.num_examples=20", "rollout.num_epochs=1", "rollout.max_staleness=0",
               "loggers=[{class_path: csv}, {class_path: samples, init_args: {groups_per_step: 4}}]")  # fmt: skip
    run = trainer("quickstart_inline", tmp_path, *options, "max_steps=null")
    run.callbacks = [WhileWaiting(2)]
    with pytest.raises(KeyboardInterrupt, match=r"^interrupted at step [23]; go on with --resume auto, fit"):
        run.fit()
    assert run.step in (2, 3), "the step's groups were either all left or all trained on"
    path = trainer("quickstart_inline", tmp_path, *options, "max_steps=null").fit(resume="auto")
    trained = [(s["step"], s["prompt_id"]) for s in samples(path)]
    assert sorted({prompt_id for _, prompt_id in trained}) == list(range(20))
    assert len(set(trained)) == 20
    assert [row["step"] for row in rows(path)] == ["1", "2", "3", "4", "5"]


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


@pytest.mark.slow
def test_data_that_ends_is_trained_to_the_last_row_evaluated_and_can_be_gone_on_with(tmp_path: Path) -> None:
    options = ("data.init_args.num_examples=9", "num_minibatches=8", "evaluation={at_end: true, max_prompts: 2}",
               "max_steps=null")  # fmt: skip
    run = trainer("quickstart_inline", tmp_path, *options, "rollout.num_epochs=1").fit()
    assert [bool(row["eval/arithmetic/reward"]) for row in rows(run)] == [False, False, True]
    with pytest.raises(ValueError, match=r"nothing is left to train: at step 3 .* raise rollout.num_epochs"):
        trainer("quickstart_inline", tmp_path, *options, "rollout.num_epochs=1").fit(resume="auto")
    trainer("quickstart_inline", tmp_path, *options, "rollout.num_epochs=2").fit(resume="auto")
    assert [bool(row["eval/arithmetic/reward"]) for row in rows(run)] == [False, False, True, False, False, True]


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


class Versions(Callback):
    """Which version the engine held at each evaluation."""

    def __init__(self) -> None:
        self.synced: list[int] = []
        self.evaluated: list[tuple[int, int]] = []

    @hookimpl
    def weights_synced(self, version: int) -> None:
        self.synced.append(version)

    @hookimpl
    def evaluate_end(self, step: int) -> None:
        self.evaluated.append((step, self.synced[-1]))


@pytest.mark.slow
def test_an_evaluation_is_of_the_step_it_is_named_after(tmp_path: Path) -> None:
    run = trainer("quickstart_inline", tmp_path, "max_steps=4", "sync.interval=3", "rollout.max_staleness=2",
                  "evaluation={at_start: true, every_steps: 2, max_prompts: 2}", "checkpoint.at_end=false")  # fmt: skip
    run.callbacks = [versions := Versions()]
    path = run.fit()
    assert versions.synced == [0, 2, 3, 4]
    assert versions.evaluated == [(0, 0), (2, 2), (4, 4)]
    assert "sync/probe_difference" in next(row for row in rows(path) if row["step"] == "1")


class Finished(Callback):
    """Counts finished groups on the event loop and as they are told; the step waits until 12 were finished."""

    def __init__(self) -> None:
        self.ready = threading.Semaphore(0)
        self.told = 0

    @hookimpl
    def group_ready(self) -> None:
        self.ready.release()

    @hookimpl
    def rollout_finish(self) -> None:
        self.told += 1

    @hookimpl
    def step_end(self) -> None:
        assert all(self.ready.acquire(timeout=30) for _ in range(12))


@pytest.mark.slow
def test_groups_that_finish_after_the_last_batch_are_told_too(tmp_path: Path) -> None:
    run = trainer("quickstart_inline", tmp_path, "max_steps=1", "rollout.max_staleness=1", "checkpoint.at_end=false")
    run.callbacks = [finished := Finished()]
    run.fit()
    assert finished.told == 12


@pytest.mark.slow
def test_evaluation_of_a_checkpoint_and_of_its_export_is_that_of_the_run(tmp_path: Path) -> None:
    options = ("evaluation.max_prompts=20", "evaluation.sampling={temperature: 0.0, max_new_tokens: 6}")
    run = trainer("quickstart", tmp_path, "max_steps=2", "evaluation.at_end=true", *options).fit()
    (name,) = [key for key in rows(run)[-1] if key.startswith("eval/") and key.endswith("/pass@1")]
    checkpoint = run / "checkpoints" / "step-00000002"
    values = trainer("quickstart", tmp_path, *options).evaluate(checkpoint=str(checkpoint))
    assert values[name] == float(rows(run)[-1][name])
    judge = trainer("quickstart", tmp_path / "elsewhere", *options)
    before = judge.policy.model
    assert judge.evaluate(checkpoint=str(checkpoint / "hf")) == values
    assert judge.policy.model is before
    (config,) = (tmp_path / "elsewhere").rglob("config.yaml")
    assert str(checkpoint / "hf") in config.read_text()


@pytest.mark.slow
def test_the_command_line_says_where_the_traceback_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--config", "quickstart_inline", "--runs_dir", str(tmp_path), "--data.init_args.num_eval", "0"]
    assert main(["evaluate", *options]) == 1
    found = re.search(
        r"failed: ValueError: there is nothing to evaluate on.*\n\(traceback: (.*)\)", capsys.readouterr().err
    )
    assert found is not None
    assert "Traceback" in Path(found[1]).read_text()
    leave_a_run(tmp_path / "quickstart_inline")
    assert main(["fit", *options]) == 1
    assert "traceback" not in capsys.readouterr().err, "no directory was opened, so none was written"


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
    leave_a_run(tmp_path / "quickstart")
    with pytest.raises(BrokenRules, match="--resume auto"):
        trainer("quickstart", tmp_path).fit()


def test_every_recipe_is_valid_and_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for name, file in recipes.shipped().items():
        text = file.read_text()
        head = [line for line in text.splitlines() if line.startswith("#")]
        assert any(line.startswith("# Hardware:") for line in head), name
        assert any("Time:" in line for line in head), name
        assert any(line.startswith("# Expect:") for line in head), name
        assert recipes.load(name).validate() == [], name
