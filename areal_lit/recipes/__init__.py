"""Recipes: YAML files whose keys are the Trainer's arguments.

From Python: ``areal_lit.recipes.load("quickstart").fit()``.
"""

from areal_lit.recipes.files import RecipeError, find, layers, parse_value, read, ready_recipes, shipped
from areal_lit.recipes.loading import Recipe, describe_config, load, read_flags, resolve

__all__ = [
    "Recipe", "RecipeError", "describe_config", "find", "layers", "load", "parse_value", "read",
    "read_flags", "ready_recipes", "resolve", "shipped",
]  # fmt: skip
