"""``areal-lit fit``: train as a recipe says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from areal_lit.cli.recipe_work import work_on_recipe

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

OWN = {
    "--resume auto|best|PATH": "go on from the run's newest whole checkpoint (the start if there is none), from its "
    "best (checkpoint.best), or from PATH",
}


def run(arguments: Sequence[str]) -> int:
    """0 finished, 1 failed, 2 nothing is left to train; other wrong use and interruption are the caller's."""
    return work_on_recipe("fit", arguments, OWN, fit)


def fit(trainer: Trainer, named: Mapping[str, str]) -> None:
    """Train and print where to."""
    print(f"finished: {trainer.fit(resume=named.get('resume'))}")
