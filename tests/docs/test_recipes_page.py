"""What recipes/README.md says of recipes is what their headers and their YAML say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from areal_lit import recipes

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "recipes" / "README.md").read_text(encoding="utf-8")
TIMES = dict(re.findall(r"^\| \[(quickstart\w*)\].*\| ([^|]+) \| [^|]+ \|$", PAGE, re.MULTILINE))


def test_every_quickstart_is_in_the_table() -> None:
    assert set(TIMES) == {path.stem for path in ROOT.glob("recipes/quickstart*.yaml")}


@pytest.mark.parametrize("name", TIMES)
def test_times_are_those_of_the_headers(name: str) -> None:
    header = ROOT.joinpath("recipes", f"{name}.yaml").read_text(encoding="utf-8")
    assert f"Time: {TIMES[name]}." in header.replace("Time: about ", "Time: ")


@pytest.mark.slow
def test_the_page_says_which_recipes_are_not_two_steps_stale() -> None:
    trainers = {name: recipes.load(name) for name in TIMES}
    offline = {name for name, trainer in trainers.items() if trainer.algorithm.offline}
    others = {name for name in set(TIMES) - offline if trainers[name].rollout.max_staleness != 2}
    told = PAGE.partition("on data up to two\nsteps old, but for")[2].partition(" generate")[0]
    assert set(re.findall(r"`(\w+)`", told)) == offline | others
