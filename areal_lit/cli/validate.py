"""``areal-lit validate``: every broken rule of a recipe, and what it would start. Starts nothing."""

from __future__ import annotations

from collections.abc import Sequence

from areal_lit.cli.fit import OWN
from areal_lit.cli.options import read_options, read_recipe
from areal_lit.cli.reporting import report_broken_rules


def run(arguments: Sequence[str]) -> int:
    """0 when all is well, 1 when rules are broken."""
    options = read_options("validate", arguments, OWN)
    if options is None or (recipe := read_recipe(options)) is None:
        return 0
    trainer = recipe.build()
    if report_broken_rules(trainer.validate(resume=options.named.get("resume"))):
        return 1
    print("the recipe is valid; it would start:")
    for line in trainer.describe():
        print(f"  {line}")
    return 0
