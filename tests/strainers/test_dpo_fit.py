"""DPO on pairs from a file, with a frozen reference, through ``Trainer.fit``."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
import torch
from strainer_dpo import DPO

from areal_lit import hookimpl
from areal_lit.checkpointing import Checkpoint
from areal_lit.contracts import Callback
from areal_lit.evaluation import Evaluation
from areal_lit.models import load_causal_lm
from areal_lit.roles import Role
from areal_lit.rollout import Rollout
from areal_lit.testing.strategy_case import plain_outputs
from areal_lit.token_batch import TokenBatch
from areal_lit.trainer import Trainer
from areal_lit.types import ModelSpec
from areal_lit_data.jsonl import Jsonl
from areal_lit_launchers.inline import Inline
from areal_lit_loggers.csv import Csv
from areal_lit_optimizers.adamw import AdamW
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


class Recorder(Callback):
    """Keeps every step's batch."""

    def __init__(self) -> None:
        self.batches: list[TokenBatch] = []

    @hookimpl
    def batch_ready(self, batch: TokenBatch) -> None:
        self.batches.append(batch)


def read(path: Path) -> list[dict[str, float]]:
    with path.open() as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


@pytest.mark.slow
def test_preferences_are_learned_and_the_reference_stays_put(tmp_path: Path) -> None:
    train = write_pairs(tmp_path / "train.jsonl", range(20, 20 + NUM_ROWS))
    held_out = write_pairs(tmp_path / "held_out.jsonl", range(40, 56))
    recorder = Recorder()
    run = Trainer(
        algorithm=DPO(beta=0.2),
        policy=Role(model=MODEL, strategy=Single(), optimizer=AdamW(lr=3e-4)),
        reference=Role(model=MODEL, strategy=Single()),
        data=Jsonl(files=[train], eval_files={"held_out": [held_out]}, prompt="prompt"),
        launcher=Inline(),
        rollout=Rollout(groups_per_step=ROWS_PER_STEP, samples_per_group=1),
        evaluation=Evaluation(at_start=True, at_end=True),
        checkpoint=Checkpoint(at_end=False),
        loggers=[Csv()],
        callbacks=[recorder],
        max_steps=NUM_STEPS,
        runs_dir=str(tmp_path),
    ).fit()
    rows = read(run / "metrics.csv")
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
