"""Recipes: YAML files whose keys are the Trainer's arguments.

From Python: ``areal_lit.recipes.load("quickstart").fit()``.
"""

from areal_lit.recipes.loading import (
    Recipe,
    RecipeError,
    describe_config,
    find,
    load,
    parse_value,
    read,
    read_flags,
    resolve,
    shipped,
)

__all__ = [
    "Recipe", "RecipeError", "describe_config", "find", "load", "parse_value", "read", "read_flags",
    "resolve", "shipped",
]  # fmt: skip
