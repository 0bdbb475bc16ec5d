"""docs/reading_metrics.md tells every metric there is: of measures, of every algorithm, of real runs; and no other."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from areal_lit.cli.main import main
from areal_lit.contracts import Algorithm
from areal_lit.measures import PATTERNS, measure_of
from areal_lit.plugins import Plugins
from areal_lit.testing.algorithm_case import AlgorithmCase
from areal_lit.testing.toy import RaggedGroups
from areal_lit_algorithms.catalogue import Entry
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.kpop import KPop
from areal_lit_algorithms.pairs import PairAlgorithm
from areal_lit_algorithms.pieces.rejection import Rejection
from areal_lit_algorithms.pieces.shaping import Overlong, Shaping

PAGE = Path(__file__).parents[2] / "docs" / "reading_metrics.md"
SMALL = [
    "--rollout.groups_per_step=2", "--rollout.samples_per_group=2", "--max_steps=2", "--loggers=[csv]",
    "--evaluation.every_steps=1", "--evaluation.max_prompts=2", "--launcher=inline", "--checkpoint.every_steps=1",
]  # fmt: skip
SELDOM = {"rollout/stale_kept", "rollout/max_new_tokens", "rollout/rejected"}
"""Metrics of circumstances that no short run has."""


def documented() -> list[str]:
    """What stands in backticks in the first columns of the tables that have metrics there."""
    names = []
    for table in PAGE.read_text(encoding="utf-8").split("\n\n"):
        if table.startswith("| metric |"):
            for line in table.splitlines()[2:]:
                names += re.findall(r"`([^`]+)`", line.split("|")[1])
    return names


def pattern(name: str) -> str:
    """With words in capitals standing for any."""
    return re.sub("[A-Z]+", "*", name)


def undocumented(metrics: Iterable[str]) -> list[str]:
    told = [pattern(name) for name in documented()]
    return sorted({metric for metric in metrics if not any(fnmatchcase(metric, each) for each in told)})


def reported(algorithm: Algorithm) -> set[str]:
    """Names of all that it measures in a step."""
    is_pairs = isinstance(algorithm, PairAlgorithm)
    columns: Any = (lambda rng, index, n: {"sign": 1.0 - 2.0 * index}) if is_pairs else None
    draw = RaggedGroups(pairs=is_pairs, offline=algorithm.offline, columns=columns)
    case = AlgorithmCase(algorithm=algorithm, draw=draw, seed=0)
    step = case.step(case.packed(case.groups())).metrics
    metrics = {name.replace("policy/", "train/"): metric for name, metric in step.items()}
    return {*metrics, *(metric.name for metric in algorithm.end_step(metrics))}


def algorithms() -> list[Algorithm]:
    plugins = [p for p in Plugins.discover() if p.kind == "algorithm" and p.distribution == "areal-lit"]
    shaping = Shaping(overlong=Overlong(max_length=12, buffer=6))
    options = GRPO(clip_dual=3.0, kl_weight=0.1, proximal="compare", with_entropy=True, reward_shaping=shaping)
    capped = KPop(rejection=Rejection(action="mask", metric="binary_kl", upper=2.0, weight_cap=20.0))
    return [options, capped, *(Entry.of(plugin).made for plugin in plugins)]


def of_run(arguments: list[str], runs: Path) -> set[str]:
    assert main(["fit", *arguments, *SMALL, "--runs_dir", str(runs)]) == 0
    (table,) = runs.rglob("metrics.csv")
    with table.open() as file:
        return set(next(csv.reader(file))) - {"step"}


def test_every_measure_is_told_and_what_is_told_has_one() -> None:
    names = documented()
    assert len(names) > 100
    assert [each for each in PATTERNS if not any(fnmatchcase(name, each) for name in names)] == []
    fixed = [name for name in names if pattern(name) == name]
    assert [name for name in fixed if measure_of(name).title == name] == []


def test_what_algorithms_measure_is_told() -> None:
    assert undocumented(metric for algorithm in algorithms() for metric in reported(algorithm)) == []


@pytest.mark.slow
def test_what_runs_report_is_told_and_nothing_else(tmp_path: Path) -> None:
    runs = {
        name: of_run(["--config", name, "--name", name], tmp_path / name)
        for name in ("quickstart_ppo", "quickstart_sft")
    }
    metrics = {metric for of in runs.values() for metric in of}
    assert undocumented(metrics) == []
    metrics |= {metric for algorithm in algorithms() for metric in reported(algorithm)}
    fixed = {name for name in documented() if pattern(name) == name}
    assert fixed - metrics <= SELDOM
