"""Real outside distributions: built as wheels, installed beside areal-lit, and used by recipe alone.

One works, the other is broken in every way there is.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OUTSIDE = Path(__file__).parent / "outside"
BROKEN = Path(__file__).parent / "broken_plugin"

pytestmark = pytest.mark.slow


def _run(*command: str | Path, cwd: Path, expect: int = 0) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def environment(once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """Commands of a fresh virtualenv that holds the wheels; their dependencies come from the running environment."""
    return once("outside", _install) / "venv" / "bin"


def _install(base: Path) -> None:
    wheels = base / "wheels"
    for project in (ROOT, OUTSIDE, BROKEN):
        _run(sys.executable, "-m", "build", "--wheel", "--outdir", wheels, project, cwd=base)
    venv.create(base / "venv", with_pip=True)
    python = base / "venv" / "bin" / "python"
    _run(python, "-m", "pip", "install", "--no-deps", "--quiet", *wheels.glob("*.whl"), cwd=base)
    site = Path(_run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=base).strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")


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


def test_outside_plugins_pass_the_conformance_suites(environment: Path, tmp_path: Path) -> None:
    shutil.copy(OUTSIDE / "conformance.py", tmp_path)  # away from the source, so that the installed package is tested
    said = _run(environment / "python", "-m", "pytest", "-q", "conformance.py", cwd=tmp_path)
    assert "4 passed" in said


def test_a_broken_distribution_is_listed_with_its_tracebacks(environment: Path, tmp_path: Path) -> None:
    said = _run(environment / "areal-lit", "plugins", "--broken", cwd=tmp_path, expect=1)
    for name in ("broken", "missing", "from_the_future"):
        assert name in said
    assert "ImportError: libreward.so.7" in said
    assert "has no 'NoSuchClass'" in said
    assert "upgrade areal-lit or install an older release" in said
    assert "areal-outside" not in said


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("--reward=broken", "ImportError: libreward.so.7"),
        ("--filters=[missing]", "has no 'NoSuchClass'"),
        ("--callbacks=[from_the_future]", r"areal-broken 0.3.0"),
    ],
)
def test_selecting_a_broken_plugin_is_refused_with_the_reason(
    environment: Path, tmp_path: Path, override: str, reason: str
) -> None:
    said = _run(environment / "areal-lit", "fit", "--config", OUTSIDE / "recipe.yaml", override, cwd=tmp_path, expect=2)
    assert reason in said
    assert not (tmp_path / "runs").exists()
