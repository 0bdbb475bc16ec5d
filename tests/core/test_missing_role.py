"""What a role that is missing is told with: a section that makes the recipe whole, and recipes that have it."""

from __future__ import annotations

import pytest
import yaml

from areal_lit import recipes
from areal_lit.recipes import RecipeError
from areal_lit.trainer import Trainer


def recipe(*overrides: str, base: str = "quickstart") -> Trainer:
    return recipes.load(base, overrides=["name=missing_role", *overrides])


@pytest.mark.parametrize(
    ("base", "algorithm", "role"),
    [
        ("quickstart", "ppo", "critic"),
        ("quickstart_inline", "reinforce_pp_baseline", "reference"),
    ],
)
def test_the_section_that_is_told_makes_the_recipe_valid(base: str, algorithm: str, role: str) -> None:
    (rule,) = recipe(f"algorithm={algorithm}", base=base).validate()
    told, _, section = rule.partition("\n")
    assert told.startswith(f"{role} is missing: ")
    assert f"quickstart_{algorithm} and gsm8k_{algorithm}" in told
    whole = recipes.load(base, yaml.safe_load(section), overrides=["name=missing_role", f"algorithm={algorithm}"])
    assert whole.validate() == []
    added = getattr(whole, role)
    assert (added.model, added.num_threads, added.colocate_with) == (
        whole.policy.model, whole.policy.num_threads, "policy"
    )  # fmt: skip
    assert (added.optimizer is not None) == (role == "critic")


def test_an_argument_that_an_algorithm_must_have_is_told_with_recipes_that_give_it() -> None:
    with pytest.raises(RecipeError, match=r"reward_shaping is required: .*; ready: quickstart_dapo and gsm8k_dapo"):
        recipe("algorithm=dapo")
    with pytest.raises(RecipeError, match=r"optimizer\.init_args\.lr is required: a number$"):
        recipe("policy.optimizer=null", "policy.optimizer=adamw")
