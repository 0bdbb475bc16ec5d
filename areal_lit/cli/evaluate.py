"""``areal-lit evaluate``: a recipe's evaluation sets, on a checkpoint, a model, or the model it starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from areal_lit.cli.recipe_work import work_on_recipe

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

OWN = {
    "--checkpoint auto|best|PATH": "the newest or the best (checkpoint.best) of the recipe's run, or one of any run, "
    "a run's directory (its newest), or a Hugging Face model directory; without it the model that the recipe names; "
    "results go to RUNS_DIR/NAME/evaluations of the recipe, wherever the checkpoint lies",
}


def run(arguments: Sequence[str]) -> int:
    """0 finished, 1 failed; wrong use and interruption are the caller's."""
    return work_on_recipe("evaluate", arguments, OWN, print_metrics)


def print_metrics(trainer: Trainer, named: Mapping[str, str]) -> None:
    """Evaluate and print a line per metric, and where they are kept."""
    from areal_lit.run.running import evaluating

    with evaluating(trainer, checkpoint=named.get("checkpoint")) as run:
        metrics = run.evaluate()
    width = max(map(len, metrics), default=0)
    for name, value in metrics.items():
        print(f"{name:<{width}}  {value:.6g}")
    print(f"written to {run.path}")
