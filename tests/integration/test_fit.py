"""Whole runs: what they leave, evaluations, and what is told. Real engine, real processes, the quickstart's sizes."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
import yaml
from fit_runs import leave_a_run, leave_pairs, rows, samples, trainer

from areal_lit import hookimpl, recipes
from areal_lit.cli.main import main
from areal_lit.contracts import Callback
from areal_lit.validation import BrokenRules
from areal_lit_data.arithmetic import Arithmetic


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
def test_data_that_ends_is_trained_to_the_last_row_evaluated_and_can_be_gone_on_with(tmp_path: Path) -> None:
    options = ("data.init_args.num_examples=9", "num_minibatches=8", "evaluation={at_end: true, max_prompts: 2}",
               "max_steps=null")  # fmt: skip
    run = trainer("quickstart_inline", tmp_path, *options, "rollout.num_epochs=1").fit()
    assert [bool(row["eval/arithmetic/reward"]) for row in rows(run)] == [False, False, True]
    with pytest.raises(ValueError, match=r"nothing is left to train: at step 3 .* raise rollout.num_epochs"):
        trainer("quickstart_inline", tmp_path, *options, "rollout.num_epochs=1").fit(resume="auto")
    trainer("quickstart_inline", tmp_path, *options, "rollout.num_epochs=2").fit(resume="auto")
    assert [bool(row["eval/arithmetic/reward"]) for row in rows(run)] == [False, False, True, False, False, True]


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


def test_a_second_run_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    leave_a_run(tmp_path / "quickstart")
    with pytest.raises(BrokenRules, match="--resume auto"):
        trainer("quickstart", tmp_path).fit()


def test_every_recipe_is_valid_listed_and_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: Path
) -> None:
    listed = (repository / "recipes" / "README.md").read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    leave_pairs(Path("runs/gsm8k_grpo"))
    for name, file in recipes.shipped().items():
        text = file.read_text()
        head = [line for line in text.splitlines() if line.startswith("#")]
        assert any(line.startswith("# Hardware:") for line in head), name
        assert any("Time:" in line for line in head), name
        assert any(line.startswith("# Expect:") for line in head), name
        assert f"[{name}]({name}.yaml)" in listed, name
        assert recipes.load(name).validate() == [], name
