"""``areal-lit fit``: train as a recipe says."""

from __future__ import annotations

from collections.abc import Sequence

from areal_lit.cli.options import read_options, read_recipe
from areal_lit.cli.reporting import announce, guarded
from areal_lit.collector import collected_later
from areal_lit.recipes.warm_up import warm_up_named

OWN = {
    "--resume auto|best|PATH": "go on from the run's newest whole checkpoint (the start if there is none), from its "
    "best (checkpoint.best), or from PATH",
}


def run(arguments: Sequence[str]) -> int:
    """0 finished, 1 failed, 2 nothing is left to train; other wrong use and interruption are the caller's."""
    options = read_options("fit", arguments, OWN)
    if options is None:
        return 0
    announce(options.configs)
    with warm_up_named(options.configs, options.overrides):
        with collected_later():
            recipe = read_recipe(options)
        if recipe is None:
            return 0
        trainer = recipe.build()
        return guarded(lambda: print(f"finished: {trainer.fit(resume=options.named.get('resume'))}"))
