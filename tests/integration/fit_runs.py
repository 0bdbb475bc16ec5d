"""Runs of the quickstart's sizes, and what they wrote."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from areal_lit import recipes
from areal_lit.trainer import Trainer

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


def leave_pairs(directory: Path) -> None:
    """A run that answered some prompts right and wrong."""
    directory.mkdir(parents=True)
    records = [
        {
            "step": 1, "prompt": [{"role": "user", "content": f"{number}+1="}], "completion": str(reward),
            "reward": reward, "stop_reason": "stop", "tokens": {"ids": [reward], "logprobs": [0], "versions": [[0, 1]]},
        }
        for number in range(50)
        for reward in (0, 1)
    ]  # fmt: skip
    (directory / "samples.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def learned(run: Path) -> list[dict[str, str]]:
    """The columns that must repeat exactly: all but times and queue lengths."""
    varying = ("time/", "sync/", "reward/", "rollout/running", "rollout/ready")
    return [{k: v for k, v in row.items() if not k.startswith(varying)} for row in rows(run)]


def samples(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
