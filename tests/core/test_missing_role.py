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
    assert ("PPO needs that role; " in told and "choose another algorithm" in told) == (algorithm == "ppo")
    assert f"quickstart_{algorithm} and gsm8k_{algorithm}" in told
    whole = recipes.load(base, yaml.safe_load(section), overrides=["name=missing_role", f"algorithm={algorithm}"])
    assert whole.validate() == []
    added = getattr(whole, role)
    assert (added.model, added.num_threads, added.colocate_with) == (
        whole.policy.model, whole.policy.num_threads, "policy"
    )  # fmt: skip
    assert (added.optimizer is not None) == (role == "critic")


def test_a_teacher_is_not_told_to_be_the_policy() -> None:
    (rule,) = recipe("algorithm=distill").validate()
    told, _, section = rule.partition("\n")
    assert "with the path of a better model" in told
    (rule,) = recipes.load("quickstart", yaml.safe_load(section), overrides=["algorithm=distill"]).validate()
    assert rule.startswith("teacher.model.path: model path '/path/of/another/model' does not exist")


def test_an_option_that_brings_a_role_is_named() -> None:
    (rule,) = recipe("algorithm.kl_weight=0.1").validate()
    assert "kl_weight 0.1 needs that role" in rule
    assert "or change the algorithm's options" in rule


def test_an_argument_that_an_algorithm_must_have_is_told_with_recipes_that_give_it() -> None:
    with pytest.raises(RecipeError, match=r"reward_shaping is required: .*; ready: quickstart_dapo and gsm8k_dapo"):
        recipe("algorithm=dapo")
    with pytest.raises(RecipeError, match=r"reward\.init_args\.function is required: text or a function$"):
        recipe("reward=function")
    with pytest.raises(RecipeError, match=r"optimizer\.init_args\.lr is required: a number$"):
        recipe("policy.optimizer=null", "policy.optimizer=adamw")
