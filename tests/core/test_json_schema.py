"""The JSON Schema of recipes: it takes what ships, and what it rejects the parser rejects."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from areal_lit import recipes
from areal_lit.cli.main import main
from areal_lit.recipes.json_schema import json_schema
from areal_lit.trainer import Trainer

Place = tuple[str, ...]

FREE = {"template_kwargs", "config"}
"""Tables whose keys are another library's."""

SHIPPED: dict[str, dict[str, Any]] = {name: recipes.read(name) for name in sorted(recipes.shipped())}
"""Read once: what an example is drawn from must not change while it is drawn again."""

WRONG = (None, True, 3, -1.5, "so", "1e-5", [], ["so"], {}, {"so": 1})


@cache
def validator() -> Draft202012Validator:
    schema = json_schema(Trainer)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def is_accepted(recipe: Any) -> bool:
    accepted: bool = validator().is_valid(recipe)
    return accepted


def is_parsed(recipe: Any) -> bool:
    try:
        recipes.resolve([recipe])
    except recipes.RecipeError:
        return False
    return True


def tables(value: Any, path: Place = ()) -> Iterator[Place]:
    """Paths of all tables, those of other libraries left out."""
    if isinstance(value, dict):
        yield path
        for key, inner in value.items():
            if key not in FREE:
                yield from tables(inner, (*path, key))


def leaves(value: Any, path: Place = ()) -> Iterator[Place]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in FREE:
                yield from leaves(inner, (*path, key))
    else:
        yield path


def within(recipe: Any, path: Place) -> Any:
    for key in path:
        recipe = recipe[key]
    return recipe


def is_told(recipe: Any, path: Place) -> bool:
    """Whether the recipe itself says what may stand there: arguments of a class that only its base names may be any."""
    places = (path[:end] for end, key in enumerate(path) if key == "init_args")
    return all("class_path" in within(recipe, place) for place in places)


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A shipped recipe with one mistake in it, and of which kind."""
    recipe = copy.deepcopy(SHIPPED[draw(st.sampled_from(list(SHIPPED)))])
    kind = draw(st.sampled_from(["misspelt", "unknown", "wrong", "missing"]))
    if kind == "misspelt":
        told = sorted(path for path in tables(recipe) if is_told(recipe, path))
        table = within(recipe, draw(st.sampled_from(told)))
        key = draw(st.sampled_from(sorted(table)))
        table[f"{key}s"] = table.pop(key)
    elif kind == "unknown":
        named = [path for path in leaves(recipe) if path[-1] == "class_path" and is_told(recipe, path)]
        named = named or [("transport",)]
        within(recipe, (path := draw(st.sampled_from(named)))[:-1])[path[-1]] = "no_such_plugin"
    elif kind == "wrong":
        path = draw(st.sampled_from(sorted(leaves(recipe))))
        within(recipe, path[:-1])[path[-1]] = draw(st.sampled_from(WRONG))
    else:
        table = within(recipe, draw(st.sampled_from(sorted(tables(recipe)))))
        del table[draw(st.sampled_from(sorted(table)))]
    return kind, recipe


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipes_are_accepted(name: str) -> None:
    assert [error.message for error in validator().iter_errors(SHIPPED[name])] == []


@settings(max_examples=60)
@given(mutated())
def test_what_the_schema_rejects_the_parser_rejects(mutation: tuple[str, dict[str, Any]]) -> None:
    kind, recipe = mutation
    if kind in ("misspelt", "unknown"):
        assert not is_accepted(recipe)
    if not is_accepted(recipe):
        assert not is_parsed(recipe)


@pytest.mark.parametrize(
    ("value", "is_right"), [(3, True), ("3", True), (3.5, False), (True, False), ("three", False), (None, True)]
)
def test_numbers_may_be_quoted_as_the_parser_has_it(value: Any, is_right: bool) -> None:
    recipe = {**SHIPPED["quickstart"], "max_steps": value}
    assert (is_accepted(recipe), is_parsed(recipe)) == (is_right, is_right)


def test_components_stand_by_name_by_path_and_with_their_arguments() -> None:
    quickstart = SHIPPED["quickstart"]
    for reward, is_right in (
        ("math", True),
        ("areal_lit_rewards.math.Math", True),
        ({"class_path": "math"}, True),
        ({"class_path": "math", "init_args": None}, True),
        ({"class_path": "areal_lit_rewards.math:Math", "init_args": {"float_rounding": 3}}, True),
        ({"class_path": "areal_lit_rewards.math.Math", "init_args": {"rounding": 3}}, False),
        ({"class_path": "math", "float_rounding": 3}, False),
        ("function", False),
        ({"class_path": "function"}, False),
        ("maths", False),
    ):
        recipe = {**quickstart, "reward": reward}
        assert (is_accepted(recipe), is_parsed(recipe)) == (is_right, is_right), reward


def test_descriptions_and_defaults_come_from_signatures() -> None:
    schema = json_schema(Trainer)
    assert schema["else"]["properties"]["max_steps"]["description"].startswith("training steps")
    sampling = schema["$defs"]["areal_lit.types.Sampling"]["properties"]
    assert (sampling["temperature"]["default"], sampling["top_k"]["default"]) == (1.0, 0)
    of_ppo = schema["$defs"]["areal_lit_algorithms.ppo.PPO"]["properties"]
    assert of_ppo["reward_norm"]["default"]["mean_level"] == "none"
    names = {
        choice.get("const") for choice in schema["$defs"]["reward"]["anyOf"][1]["properties"]["class_path"]["anyOf"]
    }
    assert {"math", "number"} <= names


PLUGIN = """
from areal_lit.contracts import Reward


class Polite(Reward):
    '''1 for a completion that says please.

    Args:
        words: any of which will do.
    '''

    def __init__(self, *, words: list[str]) -> None:
        self.words = words

    def score(self, trajectory):
        return float(any(word in trajectory.text for word in self.words))
"""


def test_plugins_of_others_are_in_it_and_broken_ones_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    metadata = tmp_path / "schema_plugins-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: schema-plugins\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[areal_lit.rewards]\npolite = schema_polite:Polite\nbroken = schema_broken:Broken\n"
    )
    (tmp_path / "schema_polite.py").write_text(PLUGIN)
    (tmp_path / "schema_broken.py").write_text("1 / 0")
    theirs = Draft202012Validator(json_schema(Trainer))
    quickstart = SHIPPED["quickstart"]
    for arguments, is_right in ({"words": ["please"]}, True), ({"words": "please"}, False), ({"word": []}, False):
        reward = {"class_path": "polite", "init_args": arguments}
        assert theirs.is_valid({**quickstart, "reward": reward}) == is_right
    assert theirs.is_valid({**quickstart, "reward": {"class_path": "broken", "init_args": {"anything": 1}}})


def test_the_command_writes_the_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--output", str(tmp_path / "schema.json")]) == 0
    written = json.loads((tmp_path / "schema.json").read_text())
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == written == json_schema(Trainer)
