"""Work that a command does on the Trainer of a recipe: `fit` and `evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from areal_lit.cli.options import read_options, read_recipe
from areal_lit.cli.reporting import announce, guarded
from areal_lit.collector import collected_later
from areal_lit.recipes.warm_up import warm_up_named

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


def work_on_recipe(
    command: str, arguments: Sequence[str], own: Mapping[str, str], work: Callable[[Trainer, Mapping[str, str]], None]
) -> int:
    """Read the command line and the recipe, imports under way meanwhile, then work; the exit code, as ``guarded`` says.

    Args:
        own: help of the command's own options.
        work: gets the Trainer, and the values of the own options that were given.
    """
    options = read_options(command, arguments, own)
    if options is None:
        return 0
    announce(options.configs)
    with warm_up_named(options.configs, options.overrides):
        with collected_later():
            recipe = read_recipe(options)
        if recipe is None:
            return 0
        trainer = recipe.build()
        return guarded(lambda: work(trainer, options.named))
