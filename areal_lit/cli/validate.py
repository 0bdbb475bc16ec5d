"""``areal-lit validate``: every broken rule of a recipe, and what it would start. Starts nothing."""

from __future__ import annotations

from collections.abc import Sequence

from areal_lit.cli.fit import OWN
from areal_lit.cli.options import read_options, read_recipe
from areal_lit.cli.reporting import report_broken_rules
from areal_lit.validation import broken_rules, end_rules, name_rules, place_rules, tokenizer_notes


def run(arguments: Sequence[str]) -> int:
    """0 when all is well, 1 when rules are broken.

    What is no fault of the recipe is a note: a name that is taken, a run that is at its end.
    """
    options = read_options("validate", arguments, OWN)
    if options is None or (recipe := read_recipe(options)) is None:
        return 0
    trainer, resume = recipe.build(), options.named.get("resume")
    if report_broken_rules([*broken_rules(trainer), *place_rules(trainer, resume)]):
        return 1
    print("the recipe is valid; it would start:")
    for line in trainer.describe():
        print(f"  {line}")
    for note in [*tokenizer_notes(trainer), *name_rules(trainer, resume), *end_rules(trainer, resume)]:
        print(f"note: {note}")
    return 0
