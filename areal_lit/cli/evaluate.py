"""``areal-lit evaluate``: a recipe's evaluation sets, on a checkpoint, a model, or the model it starts from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from areal_lit.cli.options import read_options, read_recipe
from areal_lit.cli.reporting import announce, guarded
from areal_lit.collector import collected_later
from areal_lit.recipes.warm_up import warm_up_named

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

OWN = {
    "--checkpoint auto|best|PATH": "the newest or the best (checkpoint.best) of the recipe's run, or one of any run, "
    "a run's directory (its newest), or a Hugging Face model directory; without it the model that the recipe names",
}


def run(arguments: Sequence[str]) -> int:
    """0 finished, 1 failed; wrong use and interruption are the caller's."""
    options = read_options("evaluate", arguments, OWN)
    if options is None:
        return 0
    announce(options.configs)
    with warm_up_named(options.configs, options.overrides):
        with collected_later():
            recipe = read_recipe(options)
        if recipe is None:
            return 0
        trainer = recipe.build()
        return guarded(lambda: print_metrics(trainer, options.named.get("checkpoint")))


def print_metrics(trainer: Trainer, checkpoint: str | None) -> None:
    """Evaluate and print a line per metric, and where they are kept."""
    from areal_lit.run.running import evaluating

    with evaluating(trainer, checkpoint=checkpoint) as run:
        metrics = run.evaluate()
    width = max(map(len, metrics), default=0)
    for name, value in metrics.items():
        print(f"{name:<{width}}  {value:.6g}")
    print(f"written to {run.path}")
