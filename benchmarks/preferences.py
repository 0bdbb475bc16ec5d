"""How soon dpo and reward_model tell right sums from wrong ones: pair accuracy on held-out problems over their recipes.

Prints a table per recipe and fails unless each ends at 95% or more.

Usage: python benchmarks/preferences.py [--recipes quickstart_dpo quickstart_reward_model] [--runs_dir DIR]
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path

from areal_lit import recipes

WANTED = 0.95
SET = "eval/arithmetic"


def evaluations(run: Path) -> list[dict[str, float]]:
    """Per evaluation: its step, seconds of training until then, accuracy and loss."""
    found, seconds = [], 0.0
    with (run / "metrics.csv").open() as file:
        for row in csv.DictReader(file):
            seconds += float(row.get("time/step") or 0)
            if row.get(f"{SET}/pair_accuracy"):
                values = {name: float(row[f"{SET}/{name}"]) for name in ("pair_accuracy", "reward_margin", "loss")}
                found.append({"step": float(row["step"]), "seconds": seconds, **values})
    return found


def measure(recipe: str, runs_dir: str) -> float:
    """Fit the recipe, print its table, return its last accuracy."""
    run = recipes.load(recipe, overrides=[f"runs_dir={runs_dir}", "overwrite=true", "checkpoint.at_end=false"]).fit()
    rows = evaluations(run)
    print(f"\n{recipe}\n\n| step | seconds | pair accuracy | reward margin | loss |\n|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['step']:.0f} | {row['seconds']:.0f} | {row['pair_accuracy']:.1%} | {row['reward_margin']:.2f} | "
            f"{row['loss']:.3f} |"
        )
    return rows[-1]["pair_accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=["quickstart_dpo", "quickstart_reward_model"])
    parser.add_argument("--runs_dir")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        last = {recipe: measure(recipe, given.runs_dir or directory) for recipe in given.recipes}
    if missed := {recipe: accuracy for recipe, accuracy in last.items() if accuracy < WANTED}:
        raise SystemExit(f"below {WANTED:.0%}: {missed}")


if __name__ == "__main__":
    main()
