"""The page for people who come from other frameworks names no key that a recipe does not take."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

from areal_lit import recipes
from areal_lit.plugins import Plugins
from areal_lit.recipes.schema import parameters_of

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"


def keys() -> Iterator[tuple[str, str]]:
    """What stands in backticks in the second column of the tables, each with the algorithm that it is said to be of."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            yield from re.findall(r"`([^`]+)`(?: of `(\w+)`)?", line.split("|")[2])


def takes(config: Any, path: list[str]) -> bool:
    """Whether a resolved recipe has a value there, below ``init_args`` of components or not."""
    if not path:
        return True
    if is_dataclass(config) and not isinstance(config, type):
        config = vars(config)
    if not isinstance(config, Mapping):
        return False
    inner = config.get("init_args", {}) if "class_path" in config else config
    return path[0] in inner and takes(inner[path[0]], path[1:])


@pytest.fixture(scope="module")
def config() -> Mapping[str, Any]:
    return recipes.describe_config(recipes.load("gsm8k_grpo"))


def with_algorithm(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The recipe with the arguments of another algorithm, or all of its own."""
    taken = parameters_of(Plugins.discover().load("algorithm", name or "grpo"))
    return {**config, "algorithm": {key: parameter.default for key, parameter in taken.items()}}


def test_every_key_exists(config: Mapping[str, Any]) -> None:
    named = sorted(set(keys()))
    assert len(named) > 70
    assert [each for each in named if not takes(with_algorithm(config, each[1]), each[0].split("."))] == []


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        ("rollout.groups_per_steps", ""), ("algorithm.clip", ""), ("nothing", ""), ("name.more", ""),
        ("algorithm.tau_pos", ""), ("algorithm.tau", "sapo"), ("algorithm.rejection.low", ""),
    ],
)  # fmt: skip
def test_a_key_that_does_not_exist_is_found(config: Mapping[str, Any], key: str, algorithm: str) -> None:
    assert not takes(with_algorithm(config, algorithm), key.split("."))
