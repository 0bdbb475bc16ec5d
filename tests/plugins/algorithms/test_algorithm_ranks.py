"""Every algorithm that is installed, by the whole conformance suite, also on two processes that add up gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from rank_mutants import OwnShare, RankMean

from areal_lit.plugins import Plugins
from areal_lit.testing import check_algorithm, started_ranks
from areal_lit.testing.algorithm_case import AlgorithmCase
from areal_lit.testing.algorithm_ranks import Ranks, check_ranks
from areal_lit.testing.toy import RaggedGroups
from areal_lit_algorithms.pairs import PairAlgorithm
from areal_lit_algorithms.pieces.shaping import Overlong, Shaping
from areal_lit_launchers.local import Local

pytestmark = pytest.mark.slow

WANTED: Mapping[str, Mapping[str, Any]] = {
    "dapo": {"reward_shaping": Shaping(overlong=Overlong(max_length=12, buffer=6))},
    "dr_grpo": {"max_length": 12},
    "process_reward": {"outcome_weight": 0.5},
}
"""What has no default, or one that needs more than a reward."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with started_ranks(Local(), tmp_path_factory.mktemp("ranks")) as started:
        yield started


def test_every_algorithm_conforms_on_two_ranks(ranks: Ranks) -> None:
    plugins = Plugins.discover()
    broken = {}
    for name in plugins.names("algorithm"):
        algorithm: Any = plugins.load("algorithm", name)(**WANTED.get(name, {}))
        kind: dict[str, Any] = {}
        if isinstance(algorithm, PairAlgorithm):
            kind = {"pairs": True, "columns": lambda rng, index, n: {"sign": 1.0 - 2.0 * index}}
        try:
            check_algorithm(algorithm, ranks=ranks, rounds=1, **kind)
        except (AssertionError, ValueError) as error:
            broken[name] = str(error)
    assert not broken


@pytest.mark.parametrize("mutant", [RankMean, OwnShare])
def test_what_differs_between_ranks_fails(ranks: Ranks, mutant: Any) -> None:
    check_algorithm(mutant(), rounds=1)
    with pytest.raises(AssertionError, match="optimizer step of 2 ranks is not that of one"):
        check_ranks(AlgorithmCase(algorithm=mutant(), draw=RaggedGroups(), seed=0), ranks)
