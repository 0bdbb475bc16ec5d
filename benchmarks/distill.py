"""How much of the gap to its teacher distillation closes: what is compared, and where the teacher lives.

Evaluates student and teacher on held-out sums, then fits the recipe quickstart_distill in every way; prints a table and
fails unless each closes 90% of the gap.

Usage: python benchmarks/distill.py [--ways top_k/ranks sampled/server ...] [--runs_dir DIR]
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path
from typing import Any

from areal_lit import recipes
from areal_lit.models import resolve

WANTED = 0.9
REWARD = "eval/arithmetic/reward"
TEACHER = "package:areal_lit_recipes/quickstart_teacher"
SAMPLED = {
    "algorithm": {"init_args": {"compare": "sampled"}}, "policy": {"optimizer": {"init_args": {"lr": 4e-4}}},
    "rollout": {"groups_per_step": 256}, "max_steps": 300,
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "sampled": SAMPLED,
    "top_k": {},
    "vocabulary": {"algorithm": {"init_args": {"compare": "vocabulary"}}},
}
PLACES: dict[str, dict[str, Any]] = {
    "ranks": {},
    "server": {"teacher": None, "teacher_server": {"model": {"path": TEACHER}, "inference": "transformers"}},
}
WAYS = ("sampled/ranks", "sampled/server", "top_k/ranks", "top_k/server", "vocabulary/ranks")


def load(way: str, runs_dir: str) -> Any:
    """The recipe's trainer in one way; each held-out problem is answered four times."""
    compare, place = way.split("/")
    common = {
        "name": way.replace("/", "_"), "runs_dir": runs_dir, "overwrite": True, "checkpoint": {"at_end": False},
        "evaluation": {"samples": 4},
    }  # fmt: skip
    return recipes.load("quickstart_distill", OPTIONS[compare], PLACES[place], common)


def measured(run: Path) -> tuple[float, float, float, float]:
    """Reward and divergence at the end, seconds per step, and the steps taken."""
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    seconds = [float(row["time/step"]) for row in rows if row.get("time/step")]
    divergences = [float(row["train/teacher_divergence"]) for row in rows if row.get("train/teacher_divergence")]
    reward = [float(row[REWARD]) for row in rows if row.get(REWARD)][-1]
    return reward, sum(divergences[-10:]) / 10, sum(seconds) / len(seconds), len(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--runs_dir")
    given = parser.parse_args()
    missed = []
    with tempfile.TemporaryDirectory() as directory:
        runs_dir = given.runs_dir or directory
        student = load("top_k/ranks", runs_dir).evaluate()[REWARD]
        teacher = load("top_k/ranks", runs_dir).evaluate(checkpoint=resolve(TEACHER))[REWARD]
        print(f"\nstudent {student:.3f}, teacher {teacher:.3f}\n")
        print("| compare | teacher on | steps | reward | gap closed | divergence, nats | s / step |")
        print("|---|---|---|---|---|---|---|", flush=True)
        for way in given.ways:
            reward, divergence, seconds, steps = measured(load(way, runs_dir).fit())
            closed = (reward - student) / (teacher - student)
            compare, place = way.split("/")
            numbers = f"{steps} | {reward:.3f} | {closed:.1%} | {divergence:.3f} | {seconds:.2f}"
            print(f"| {compare} | {place} | {numbers} |", flush=True)
            if closed < WANTED:
                missed.append(way)
    if missed:
        raise SystemExit(f"below {WANTED:.0%} of the gap: {', '.join(missed)}")


if __name__ == "__main__":
    main()
