"""``areal-lit fit`` in a process group of its own, as a shell starts it, and what is left of it afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml
from run_processes import RUN_TIMEOUT_S, marked, what_stays

BASE = {
    "name": "run",
    "max_steps": 4,
    "data": {"class_path": "arithmetic", "init_args": {"num_examples": 64, "num_eval": 2}},
    "rollout": {"groups_per_step": 4, "samples_per_group": 2},
    "loggers": [{"class_path": "csv"}, {"class_path": "samples", "init_args": {"groups_per_step": 4}}],
    "callbacks": [],
    "checkpoint": {"export_hf": False},
}


def start(directory: Path, *options: str, **changes: object) -> subprocess.Popen[str]:
    """The quickstart, made small and changed; its recipe and its run lie in the directory."""
    recipe = directory / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({**BASE, "runs_dir": str(directory), **changes}))
    return subprocess.Popen(
        [sys.executable, "-m", "areal_lit", "fit", "--config", "quickstart", "--config", str(recipe), *options],
        env=marked(directory), start_new_session=True, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def end(process: subprocess.Popen[str], directory: Path) -> tuple[int, str]:
    """Exit status and what was told on stderr. Fails if a process of the run is left."""
    try:
        told = process.communicate(timeout=RUN_TIMEOUT_S)[1]
    finally:
        process.kill()
        left = what_stays(directory)
    assert left == [], left
    return process.returncode, told


def checkpoints(directory: Path) -> list[int]:
    """Steps of the whole checkpoints."""
    return sorted(
        int(path.parent.name.split("-")[1]) for path in directory.glob("run/checkpoints/step-*/complete.json")
    )
