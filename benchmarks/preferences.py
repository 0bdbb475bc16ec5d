"""How soon dpo and reward_model tell right sums from wrong ones: pair accuracy on held-out problems over their recipes.

Prints a table per recipe and fails unless each ends at 95% or more. With ``--sampled`` the pairs are what a run of
quickstart drew, the best and the worst completion of a prompt; then the reward of what DPO makes is told, and no bound
holds.

Usage: python benchmarks/preferences.py [--recipes quickstart_dpo quickstart_reward_model] [--sampled] [--runs_dir DIR]
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from pathlib import Path

from areal_lit import recipes

WANTED = 0.95
SAMPLED_STEPS = 100
VALUES = ("pair_accuracy", "reward_margin", "loss")


def evaluations(run: Path) -> list[dict[str, float]]:
    """Per evaluation: its step, seconds of training until then, accuracy, margin and loss."""
    found, seconds = [], 0.0
    with (run / "metrics.csv").open() as file:
        for row in csv.DictReader(file):
            seconds += float(row.get("time/step") or 0)
            values = {name: float(row[key]) for key in row if (name := _value(key)) and row[key]}
            if values:
                found.append({"step": float(row["step"]), "seconds": seconds, **values})
    return found


def _value(key: str) -> str:
    """What a column tells of an evaluation set; empty where that is not in the table."""
    name = key.rpartition("/")[2]
    return name if key.startswith("eval/") and name in VALUES else ""


def sample(runs_dir: str) -> Path:
    """A run of quickstart that keeps the best and the worst completion of every prompt."""
    logger = {"class_path": "samples", "init_args": {"groups_per_step": 16}}
    return recipes.load(
        {"base": "quickstart", "name": "sampled", "loggers": ["csv", logger], "runs_dir": runs_dir},
        {"max_steps": SAMPLED_STEPS, "overwrite": True, "checkpoint": {"at_end": False}},
    ).fit()


def measure(recipe: str, runs_dir: str, source: Path | None) -> float:
    """Fit the recipe, print its table, return its last accuracy.

    Args:
        source: the run whose samples are the pairs; None leaves the recipe its own.
    """
    overrides = [f"runs_dir={runs_dir}", "overwrite=true"]
    if source is not None:
        data = {"class_path": "preference_samples", "init_args": {"run": str(source), "eval_share": 0.2}}
        overrides += [f"data={json.dumps(data)}", f"name={recipe}_on_samples"]
    run = recipes.load(recipe, overrides=overrides).fit()
    rows = evaluations(run)
    print(f"\n{run.name}\n\n| step | seconds | pair accuracy | reward margin | loss |\n|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['step']:.0f} | {row['seconds']:.0f} | {row['pair_accuracy']:.1%} | {row['reward_margin']:.2f} | "
            f"{row['loss']:.3f} |"
        )
    if source is not None and recipe == "quickstart_dpo":
        print(f"\nmean reward of sums sampled: {reward(None):.3f} before, {reward(run):.3f} after")
    return rows[-1]["pair_accuracy"]


def reward(run: Path | None) -> float:
    """Mean reward of samples on quickstart's held-out sums, of the newest checkpoint of a run or the first model."""
    checkpoint = None if run is None else str(run)
    return recipes.load("quickstart").evaluate(checkpoint=checkpoint)["eval/arithmetic/reward"]


def measured(given: argparse.Namespace, runs_dir: str) -> dict[str, float]:
    """The last accuracy of every recipe."""
    source = sample(runs_dir) if given.sampled else None
    return {recipe: measure(recipe, runs_dir, source) for recipe in given.recipes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=["quickstart_dpo", "quickstart_reward_model"])
    parser.add_argument("--sampled", action="store_true", help="learn from what a run of quickstart sampled")
    parser.add_argument("--runs_dir")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        last = measured(given, given.runs_dir or directory)
    missed = {recipe: accuracy for recipe, accuracy in last.items() if accuracy < WANTED}
    if missed and not given.sampled:
        raise SystemExit(f"below {WANTED:.0%}: {missed}")


if __name__ == "__main__":
    main()
