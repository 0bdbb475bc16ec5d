"""A real outside distribution: built as a wheel, installed beside areal-lit, and trained with by recipe alone."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OUTSIDE = Path(__file__).parent / "outside"

pytestmark = pytest.mark.slow


def _run(*command: str | Path, cwd: Path, expect: int = 0) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtualenv that holds both wheels; their dependencies come from the running environment."""
    base = tmp_path_factory.mktemp("outside")
    wheels = base / "wheels"
    for project in (ROOT, OUTSIDE):
        _run(sys.executable, "-m", "build", "--wheel", "--outdir", wheels, project, cwd=base)
    venv.create(base / "venv", with_pip=True)
    python = base / "venv" / "bin" / "python"
    _run(python, "-m", "pip", "install", "--no-deps", "--quiet", *wheels.glob("*.whl"), cwd=base)
    site = Path(_run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=base).strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return base / "venv" / "bin"


def test_the_wheel_brings_its_own_package_and_recipes(environment: Path, tmp_path: Path) -> None:
    code = "import areal_lit, areal_lit_recipes as r; print(areal_lit.__file__); print(r.__file__)"
    where = _run(environment / "python", "-c", code, cwd=tmp_path).split()
    assert all(str(environment.parent) in path for path in where)
    assert "quickstart" in _run(environment / "areal-lit", "recipes", cwd=tmp_path)


def test_outside_plugins_are_discovered_with_their_distribution(environment: Path, tmp_path: Path) -> None:
    import json

    listed = json.loads(_run(environment / "areal-lit", "plugins", "--json", cwd=tmp_path))
    outside = {(row["kind"], row["name"]) for row in listed if row["distribution"] == "areal-outside"}
    assert outside == {("algorithm", "rewarmed"), ("reward", "digits"), ("transport", "spool"), ("callback", "tally")}
    assert {row["version"] for row in listed if row["distribution"] == "areal-outside"} == {"0.3.0"}


def test_a_recipe_trains_with_them_on_spawned_processes(environment: Path, tmp_path: Path) -> None:
    _run(environment / "areal-lit", "fit", "--config", OUTSIDE / "recipe.yaml", cwd=tmp_path)
    with (tmp_path / "runs/outside/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [1, 2, 3, 4]
    assert all(0 <= float(row["train/outside_share_positive"]) <= 1 for row in rows)
    assert float(rows[-1]["critic/squared_error"]) < float(rows[0]["critic/squared_error"])
    tally = dict(line.split() for line in (tmp_path / "runs/outside/tally.txt").read_text().splitlines())
    assert (tally["step_end"], tally["version"]) == ("4", "4")
    assert int(tally["rollout_finish"]) >= 4 * 8
    marks = (tmp_path / "rank_marks.txt").read_text().split()
    assert (marks.count("policy"), marks.count("critic")) == (4, 4)
