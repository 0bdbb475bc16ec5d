"""Preferences through ``Trainer.fit``: what is learned, where roles live, and a reference that follows the policy."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from acting_callbacks import Recorder
from every_role import EveryRole

from areal_lit import Refresh, Role, Rollout, Trainer, recipes
from areal_lit.checkpointing import Checkpoint
from areal_lit.evaluation import Evaluation, evaluation_prompts
from areal_lit.models import load_causal_lm, resolve
from areal_lit.testing.strategy_case import plain_outputs
from areal_lit.text import TextCodec
from areal_lit.types import ModelSpec
from areal_lit_algorithms.dpo import DPO
from areal_lit_algorithms.reward_model import RewardModel
from areal_lit_data.arithmetic import Arithmetic
from areal_lit_data.preference_jsonl import PreferenceJsonl
from areal_lit_launchers.inline import Inline
from areal_lit_launchers.local import Local
from areal_lit_loggers.csv import Csv
from areal_lit_optimizers.adamw import AdamW
from areal_lit_rewards.reward_model import RewardModel as RewardModelReward
from areal_lit_single.strategy import Single

MODEL = ModelSpec(path="package:areal_lit_recipes/quickstart_model")
NUM_ROWS, ROWS_PER_STEP, NUM_STEPS = 16, 8, 12


def write_pairs(path: Path, operands: range) -> str:
    """Sums whose result is to be ten too large."""
    rows = [
        {"prompt": f"{a}+{b}=", "chosen": str(a + b + 10), "rejected": str(a + b)}
        for a, b in ((i, 7 * i % 50) for i in operands)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def role(**changes: Any) -> Role:
    return Role(**{"model": MODEL, "strategy": Single(), "num_threads": 1, **changes})


def trainer(directory: Path, **changes: Any) -> Trainer:
    given: dict[str, Any] = {
        "algorithm": DPO(beta=0.2), "policy": role(optimizer=AdamW(lr=3e-4)), "reference": role(),
        "data": Arithmetic(pairs=True), "launcher": Inline(), "loggers": [Csv()], "callbacks": [],
        "rollout": Rollout(groups_per_step=ROWS_PER_STEP, samples_per_group=1),
        "evaluation": Evaluation(), "checkpoint": Checkpoint(at_end=False), "runs_dir": str(directory),
    }  # fmt: skip
    return Trainer(**{**given, **changes})


def read(run: Path) -> list[dict[str, float]]:
    with (run / "metrics.csv").open() as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def learned(run: Path) -> list[Mapping[str, float]]:
    """What every step logged, without times."""
    return [{k: v for k, v in row.items() if k.startswith(("train/", "critic/"))} for row in read(run)]


@pytest.mark.slow
def test_preferences_are_learned_and_the_reference_stays_put(tmp_path: Path) -> None:
    train = write_pairs(tmp_path / "train.jsonl", range(20, 20 + NUM_ROWS))
    held_out = write_pairs(tmp_path / "held_out.jsonl", range(40, 56))
    recorder = Recorder()
    run = trainer(
        tmp_path, data=PreferenceJsonl(files=[train], eval_files={"held_out": [held_out]}), callbacks=[recorder],
        evaluation=Evaluation(at_start=True, at_end=True), max_steps=NUM_STEPS,
    ).fit()  # fmt: skip
    rows = read(run)
    assert [row["eval/held_out/pair_accuracy"] for row in (rows[0], rows[-1])] == [0.0, 1.0]
    assert rows[0]["eval/held_out/loss"] == pytest.approx(math.log(2), rel=1e-5)  # policy and reference are equal
    assert rows[-1]["eval/held_out/loss"] < 0.5 * math.log(2)
    assert rows[1]["train/pair_accuracy"] < rows[-1]["train/pair_accuracy"] == 1.0
    start = load_causal_lm(MODEL)
    for batch in (recorder.batches[0], recorder.batches[-1]):
        mask_T = batch["loss_mask"]
        with torch.no_grad():
            expected_T = plain_outputs(start, batch).logprob_T
        torch.testing.assert_close(batch["reference"][mask_T], expected_T[mask_T], rtol=0, atol=1e-4)


@pytest.mark.slow
def test_every_role_is_the_same_wherever_it_lives(tmp_path: Path) -> None:
    """Own checkpoints and strategy options, on the policy's ranks, on another role's, in groups of their own."""
    config = json.loads((Path(resolve(MODEL.path)) / "config.json").read_text())
    other = ModelSpec(path=MODEL.path, config=config, init_seed=5)

    def fit(name: str, places: Mapping[str, str], launcher: Any) -> list[Mapping[str, float]]:
        roles = {
            "critic": role(optimizer=AdamW(lr=1e-3), colocate_with=places.get("critic")),
            "reference": role(
                strategy=Single(attention="padded", max_tokens_per_microbatch=64),
                colocate_with=places.get("reference"),
            ),
            "teacher": role(model=other, refresh=Refresh(every_steps=2, decay=0.5), colocate_with="policy"),
        }
        made = trainer(tmp_path, algorithm=EveryRole(), launcher=launcher, name=name, max_steps=3, **roles)
        return learned(made.fit())

    together = fit("together", {"critic": "policy", "reference": "policy"}, Inline())
    apart = fit("apart", {"critic": "reference"}, Local())
    assert len(together) == 3
    for ours, theirs in zip(apart, together, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    first, second, third = together
    assert first["train/teacher"] < first["train/reference"] - 1  # untrained, it knows nothing of sums
    assert abs(second["train/teacher"] - first["train/teacher"]) < 1 < third["train/teacher"] - first["train/teacher"]
    assert all(row["critic/grad_norm"] > 0 for row in together)


@pytest.mark.slow
def test_a_reference_follows_the_policy_and_resumes_exactly(tmp_path: Path) -> None:
    def fit(name: str, refresh: Refresh | None, *, resume: str | None = None, **changes: Any) -> list[Any]:
        made = trainer(tmp_path, name=name, reference=role(refresh=refresh, colocate_with="policy"), **changes)
        return learned(made.fit(resume=resume))

    copied = fit("copied", Refresh(every_steps=2), max_steps=6)
    is_equal = [row["train/loss"] == pytest.approx(math.log(2), rel=1e-6) for row in copied]
    assert is_equal == [True, False] * 3  # just copied, the reference is the policy and every margin 0
    average = Refresh(every_steps=1, decay=0.9)
    saved = {"deterministic": True, "checkpoint": Checkpoint(every_steps=2)}
    whole = fit("whole", average, max_steps=4, **saved)
    fit("parted", average, max_steps=2, **saved)
    assert fit("parted", average, max_steps=4, resume="auto", **saved) == whole
    roles = tmp_path / "parted" / "checkpoints" / "step-00000004" / "roles"
    assert sorted(path.name for path in roles.iterdir()) == ["policy", "reference"]
    fixed = fit("fixed", None, max_steps=4, deterministic=True)
    assert whole[0] == fixed[0]
    assert whole[1:] != fixed[1:]


IN_ONE_PROCESS = ["launcher=inline", "loggers=[csv]", "callbacks=[]", "evaluation={at_end: true}"]


@pytest.mark.slow
def test_right_sums_are_told_from_wrong_ones_by_a_reward_model_that_then_scores_rollouts(tmp_path: Path) -> None:
    here = f"runs_dir={tmp_path}"
    run = recipes.load("quickstart_reward_model", overrides=[*IN_ONE_PROCESS, here, "max_steps=60"]).fit()
    accuracy = read(run)[-1]["eval/arithmetic/pair_accuracy"]
    assert accuracy > 0.75
    (checkpoint,) = (run / "checkpoints").glob("step-*")
    model = ModelSpec(path=str(checkpoint / "hf"))

    reward, algorithm, codec = RewardModelReward(model=model), RewardModel(), TextCodec(MODEL)
    reward.setup()
    margins = []
    for prompt in evaluation_prompts("arithmetic", Arithmetic(pairs=True).evaluation()["arithmetic"], None):
        chosen, rejected = reward.score_group(algorithm.encode(prompt, codec))
        margins.append(chosen - rejected)
    assert sum(margin > 0 for margin in margins) / len(margins) == accuracy

    scored = f"reward={{class_path: reward_model, init_args: {{model: {{path: '{model.path}'}}}}}}"
    online = [here, scored, "max_steps=1", "name=online", "loggers=[csv]", "callbacks=[]", "rewarding.num_workers=1"]
    (row,) = read(recipes.load("quickstart", overrides=[*online, "checkpoint.at_end=false"]).fit())
    assert row["reward/unscored"] == 0
    assert min(margins) < row["rollout/reward"] != 0


@pytest.mark.slow
def test_right_sums_are_told_from_wrong_ones_by_dpo(tmp_path: Path) -> None:
    fit = recipes.load("quickstart_dpo", overrides=[*IN_ONE_PROCESS, f"runs_dir={tmp_path}", "max_steps=60"])
    assert read(fit.fit())[-1]["eval/arithmetic/pair_accuracy"] >= 0.95


@pytest.mark.slow
def test_right_samples_of_a_run_are_told_from_wrong_ones_on_prompts_held_out(tmp_path: Path) -> None:
    here, everything = f"runs_dir={tmp_path}", "{class_path: samples, init_args: {groups_per_step: 64}}"
    sizes = ["name=sampled", "max_steps=4", "rollout.groups_per_step=64", "checkpoint.at_end=false", "callbacks=[]"]
    source = recipes.load("quickstart_inline", overrides=[here, *sizes, f"loggers=[{everything}]"]).fit()
    data = f"data={{class_path: preference_samples, init_args: {{run: {source}, eval_share: 0.2}}}}"
    short = ["max_steps=20", "policy.optimizer.init_args.warmup_steps=2", "evaluation.at_start=true"]
    first, *_, last = read(recipes.load("quickstart_dpo", overrides=[*IN_ONE_PROCESS, here, data, *short]).fit())
    assert first["eval/samples/pair_accuracy"] == 0
    assert first["eval/samples/loss"] == pytest.approx(math.log(2), rel=1e-5)
    assert last["eval/samples/pair_accuracy"] > 0.65
    assert last["eval/samples/loss"] < 0.66
