"""How soon each algorithm's recipe learns two-digit sums: reward over steps and seconds, and what its mechanism did.

A row per recipe: reward of the first 5 and the last 20 steps; the step and the seconds of training at which the mean of
20 steps passes 0.8, and that step beside that of the first recipe; the mean over the run of what clips, masks or
weighs. With several seeds each is the mean over seeds, and a recipe that fails with one of them has no step.

Runs are kept in --runs_dir and not repeated: a benchmark that was cut off goes on. Fails unless all pass 0.8.

Usage: python benchmarks/learning.py [--recipes quickstart quickstart_ppo ...] [--seeds 0 1] [--jobs 2]
       [--runs_dir runs/learning] [--png docs/images/learning.png]
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from areal_lit import recipes

WANTED, WINDOW = 0.8, 20
AT_WORK = {
    "train/clip_low": "clipped low {:.2%}",
    "train/clip_high": "clipped high {:.2%}",
    "train/rejected_low": "rejected low {:.2%}",
    "train/rejected_high": "rejected high {:.2%}",
    "train/m2_dropped": "dropped {:.2%}",
    "train/gate_slope": "gate slope {:.3f}",
    "train/effective_sample_size": "effective samples {:.1%}",
    "train/kl_reference": "KL {:.3f}",
    "critic/value_error": "value error {:.3f}",
    "train/reward_overlong_mean": "overlong {:.4f}",
    "rollout/rejected/equal_rewards": "groups dropped per step {:.1f}",
}
"""Metrics that show a mechanism at work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What a run logged, step by step."""

    rewards: list[float]
    seconds: list[float]
    at_work: dict[str, float]

    @property
    def smooth(self) -> list[float]:
        """The mean of the last WINDOW steps, at each step that has so many."""
        return [mean(self.rewards[end - WINDOW : end]) for end in range(WINDOW, len(self.rewards) + 1)]

    @property
    def passed_at(self) -> int | None:
        """The step at which the mean passes what is wanted."""
        return next((step for step, value in enumerate(self.smooth, WINDOW) if value > WANTED), None)


def online_recipes() -> list[str]:
    """The quickstart and the recipes over it that learn from rewards, grpo's first."""
    names = [name for name in recipes.shipped() if name.startswith("quickstart_") and name != "quickstart_inline"]
    return ["quickstart", *(name for name in names if recipes.load(name).reward is not None)]


def fit(recipe: str, seed: int, runs_dir: Path) -> Path:
    """The directory of the finished run; a process of its own, as a user would start it."""
    run = runs_dir / f"{recipe}-{seed}"
    if not (run / "finished").exists():
        command = [sys.executable, "-m", "areal_lit", "fit", "--config", recipe, "--name", run.name]
        options = {"seed": seed, "runs_dir": runs_dir, "overwrite": "true", "checkpoint.at_end": "false",
                   "loggers": "[csv]"}  # fmt: skip
        command += [word for key, value in options.items() for word in (f"--{key}", str(value))]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (run / "finished").touch()
    print(f"{run.name} finished", file=sys.stderr, flush=True)
    return run


def read(run: Path) -> Curve:
    """The run's steps; an evaluation before the first has a row of its own."""
    with (run / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["rollout/reward"]]
    values = {key: [float(row[key]) for row in rows if row.get(key)] for key in AT_WORK}
    return Curve(
        rewards=[float(row["rollout/reward"]) for row in rows],
        seconds=[float(row["time/step"]) for row in rows],
        at_work={key: mean(found) for key, found in values.items() if found},
    )


def line(recipe: str, curves: Sequence[Curve], baseline: Sequence[Curve]) -> str:
    """A recipe's row of the table."""
    start, end = (mean(mean(c.rewards[part]) for c in curves) for part in (slice(5), slice(-WINDOW, None)))
    passed, theirs = ([c.passed_at for c in found] for found in (curves, baseline))
    steps = [step for step in passed if step is not None]
    when = ["-", "-", "-"]
    if len(steps) == len(curves):
        seconds = mean(sum(c.seconds[:step]) for c, step in zip(curves, steps, strict=True))
        known = [step for step in theirs if step is not None]
        when = [f"{mean(steps):.0f}", f"{seconds:.0f}", f"{mean(steps) / mean(known):.2f}" if known else "-"]
    acted = {key: mean(c.at_work.get(key, 0.0) for c in curves) for key in AT_WORK}
    at_work = ", ".join(AT_WORK[key].format(value) for key, value in acted.items() if value)
    return f"| {recipe} | {start:.2f} | {end:.2f} | {' | '.join(when)} | {at_work} |"


def draw(curves: dict[str, list[Curve]], path: Path) -> None:
    """A panel per recipe with all its seeds, the first recipe behind each for comparison."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 2.2 * -(-len(curves) // 4)), layout="constrained")
    panels = list(figure.subplots(-(-len(curves) // 4), 4, sharex=True, sharey=True, squeeze=False).flat)
    baseline, *_ = curves.values()
    for panel, (recipe, found) in zip(panels, curves.items(), strict=False):
        for curve in baseline:
            panel.plot(range(WINDOW, len(curve.rewards) + 1), curve.smooth, color="0.75")
        for curve in found:
            panel.plot(range(WINDOW, len(curve.rewards) + 1), curve.smooth, color="C0")
        panel.axhline(WANTED, color="0.5", linestyle=":")
        panel.set_title(recipe, fontsize=9)
    for panel in panels[len(curves) :]:
        panel.set_axis_off()
    figure.supxlabel("step")
    figure.supylabel(f"reward, mean of {WINDOW} steps")
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", help="the first is what others are compared with (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--runs_dir", type=Path, default=Path("runs/learning"))
    parser.add_argument("--png", type=Path, help="draw the curves there")
    given = parser.parse_args()
    names = given.recipes or online_recipes()
    cells = [(name, seed) for name in names for seed in given.seeds]
    with ThreadPoolExecutor(given.jobs) as pool:
        runs = list(pool.map(lambda cell: fit(cell[0], cell[1], given.runs_dir), cells))
    curves: dict[str, list[Curve]] = {name: [] for name in names}
    for (name, _), run in zip(cells, runs, strict=True):
        curves[name].append(read(run))
    print(f"| recipe | reward at start | at end | step past {WANTED} | seconds | of {names[0]}'s steps | at work |")
    print("|---|---|---|---|---|---|---|")
    for name, found in curves.items():
        print(line(name, found, curves[names[0]]))
    if given.png:
        draw(curves, given.png)
    if missed := [name for name, found in curves.items() if any(curve.passed_at is None for curve in found)]:
        raise SystemExit(f"not past {WANTED}: {', '.join(missed)}")


if __name__ == "__main__":
    main()
