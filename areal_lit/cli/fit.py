"""``areal-lit fit``: train as a recipe says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from areal_lit.cli.options import read_options, read_recipe
from areal_lit.collector import collected_later
from areal_lit.recipes.warm_up import warm_up_named
from areal_lit.validation import BrokenRules

OWN = {
    "--resume auto|best|PATH": "go on from the run's newest whole checkpoint (the start if there is none), from its "
    "best (checkpoint.best), or from PATH",
}


def run(arguments: Sequence[str]) -> int:
    """0 finished, 1 failed; wrong use and interruption are the caller's."""
    options = read_options("fit", arguments, OWN)
    if options is None:
        return 0
    with warm_up_named(options.configs, options.overrides):
        with collected_later():
            recipe = read_recipe(options)
        if recipe is None:
            return 0
        trainer = recipe.build()
        return guarded(lambda: print(f"finished: {trainer.fit(resume=options.named.get('resume'))}"))


def report_broken_rules(broken: Sequence[str]) -> bool:
    """Print every broken rule of a recipe; whether there were any."""
    if broken:
        print(f"the recipe breaks {len(broken)} rule{'s' if len(broken) > 1 else ''}:", file=sys.stderr)
        for rule in broken:
            print(f"  - {rule}", file=sys.stderr)
    return bool(broken)


def guarded(work: Callable[[], None]) -> int:
    """Do a run's work; a failure is told in short here, and in full where its notes say."""
    try:
        work()
    except BrokenRules as broken:
        report_broken_rules(broken.rules)
        return 1
    # whatever a run fails of ends here; the run has written its traceback down, and where in a note
    except Exception as error:  # noqa: BLE001
        print(f"failed: {type(error).__name__}: {error}", file=sys.stderr)
        for note in getattr(error, "__notes__", ()):
            print(f"({note})", file=sys.stderr)
        return 1
    return 0
