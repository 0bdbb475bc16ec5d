from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_lit.contracts import Callback, Optimizer, Reward
from areal_lit.recipes import RecipeError, parse_value, read, read_flags, resolve, shipped
from areal_lit.types import ModelSpec, Sampling, Trajectory

HERE = __name__


class Momentum(Optimizer):
    """Passes what it does not know on to its base class."""

    def __init__(self, *, momentum: float = 0.9, nesterov: bool = True, **optimizer: Any) -> None:
        super().__init__(**optimizer)
        self.momentum = momentum
        self.nesterov = nesterov

    def build(self, parameters: Any) -> Any:
        raise NotImplementedError


class Fixed(Reward):
    def __init__(self, *, value: float = 1.0, label: str = "") -> None:
        self.value = value
        self.label = label

    def score(self, trajectory: Trajectory) -> float:
        return self.value


class Sum(Reward):
    def __init__(self, *, parts: Mapping[str, Reward], weights: Mapping[str, float] | None = None) -> None:
        self.parts = parts
        self.weights = weights

    def score(self, trajectory: Trajectory) -> float:
        return 0.0


class Every(Callback):
    def __init__(self, *, steps: int = 1) -> None:
        self.steps = steps


@final
class Role:
    def __init__(self, *, model: ModelSpec, optimizer: Optimizer | None = None, num_ranks: int = 1) -> None:
        self.model = model
        self.optimizer = optimizer
        self.num_ranks = num_ranks


@final
class Rollout:
    def __init__(self, *, groups: int = 4, sampling: Sampling | None = None, shuffle: bool = True) -> None:
        self.groups = groups
        self.sampling = sampling
        self.shuffle = shuffle


class Loop:
    """Same shape as the Trainer."""

    def __init__(
        self,
        *,
        policy: Role,
        rollout: Rollout,
        reward: Reward | None = None,
        teachers: Mapping[str, Role] | None = None,
        callbacks: Sequence[Callback] | None = None,
        max_steps: int | None = 7,
        name: str = "run",
    ) -> None:
        self.policy = policy


BASE: dict[str, Any] = {
    "policy": {
        "model": {"path": "x", "config": {"layers": 2}},
        "optimizer": {"class_path": f"{HERE}.Momentum", "init_args": {"lr": 0.1}},
    },
    "rollout": {"sampling": {"temperature": 0.5}},
    "reward": {"class_path": f"{HERE}.Sum", "init_args": {"parts": {"a": f"{HERE}.Fixed", "b": "exact_match"}}},
    "callbacks": [f"{HERE}.Every", "progress"],
}


def config(*configs: Mapping[str, Any], flags: Sequence[str] = ()) -> Any:
    return resolve([BASE, *configs], flags, cls=Loop).config


def problems(*configs: Mapping[str, Any], flags: Sequence[str] = ()) -> str:
    with pytest.raises(RecipeError) as told:
        resolve([BASE, *configs], flags, cls=Loop)
    return str(told.value)


def test_short_names_become_dotted_paths_at_any_depth_and_defaults_are_filled_in() -> None:
    found = config()
    assert found["reward"]["init_args"]["parts"]["b"]["class_path"] == "areal_lit_rewards.exact_match.ExactMatch"
    assert found["callbacks"][1]["class_path"] == "areal_lit_callbacks.progress.Progress"
    assert found["policy"]["optimizer"]["init_args"]["nesterov"] is True
    assert found["rollout"]["sampling"]["temperature"] == 0.5
    assert found["rollout"]["sampling"]["top_p"] == 1.0


def test_a_resolved_recipe_resolves_to_itself() -> None:
    found = config()
    assert resolve([found], cls=Loop).config == found


def test_overrides_reach_every_depth_in_both_spellings() -> None:
    found = config(
        flags=[
            *("--policy.optimizer.lr", "1e-4"),
            "--policy.optimizer.init_args.momentum=0.5",
            "--rollout.shuffle=false",
            *("--callbacks.0.steps", "5"),
            "--policy.model.config.layers=3",
            "--reward.parts.a.value=-2",
            *("--max_steps", "null"),
        ]
    )
    assert found["policy"]["optimizer"]["init_args"]["lr"] == 1e-4
    assert found["policy"]["optimizer"]["init_args"]["momentum"] == 0.5
    assert found["rollout"]["shuffle"] is False
    assert found["callbacks"][0]["init_args"]["steps"] == 5
    assert found["policy"]["model"]["config"] == {"layers": 3}
    assert found["reward"]["init_args"]["parts"]["a"]["init_args"]["value"] == -2.0
    assert found["max_steps"] is None


def test_text_that_looks_like_a_number_stays_text_where_text_is_wanted() -> None:
    assert config(flags=["--name", "123", "--policy.model.path=1e-4"])["name"] == "123"


def test_later_configs_win_and_tables_merge() -> None:
    found = config({"policy": {"num_ranks": 2}, "rollout": {"sampling": {"top_k": 5}}}, {"policy": {"num_ranks": 3}})
    assert found["policy"]["num_ranks"] == 3
    assert found["rollout"]["sampling"]["top_k"] == 5
    assert found["rollout"]["sampling"]["temperature"] == 0.5


def test_null_takes_away_what_earlier_configs_said() -> None:
    assert config({"rollout": {"sampling": None}})["rollout"]["sampling"] is None
    again = config({"rollout": {"sampling": None}}, {"rollout": {"sampling": {"top_k": 2}}})
    assert again["rollout"]["sampling"]["temperature"] == 1.0


def test_a_changed_class_drops_what_was_said_of_the_old_one_and_says_so() -> None:
    recipe = resolve([BASE, {"reward": {"class_path": f"{HERE}.Fixed", "init_args": {"value": 3}}}], cls=Loop)
    assert recipe.config["reward"]["init_args"] == {"value": 3.0, "label": ""}
    assert recipe.notes == ("reward.init_args.parts is dropped: it was said of another class than Fixed",)
    assert resolve([BASE, {"reward": f"{HERE}.Sum"}], cls=Loop).notes == ()


def test_an_argument_that_would_fit_the_new_class_is_dropped_too() -> None:
    recipe = resolve(["quickstart"], ["--algorithm", "ppo", "--algorithm.gamma", "0.9"])
    arguments = recipe.config["algorithm"]["init_args"]
    assert (arguments["decoupled"], arguments["old"], arguments["gamma"]) == (True, "proximal", 0.9)
    said_of_grpo = "is dropped: it was said of another class than PPO"
    assert recipe.notes == tuple(f"algorithm.init_args.{name} {said_of_grpo}" for name in ("decoupled", "old"))
    again = resolve(
        ["quickstart"], ["--algorithm", "ppo", "--algorithm.decoupled", "false", "--algorithm.old=behaviour"]
    )
    assert again.notes == ()


def test_an_argument_may_stand_before_its_class_on_the_command_line() -> None:
    for flags in (
        ["--reward.value=3", f"--reward={HERE}.Fixed"],
        [f"--reward.class_path={HERE}.Fixed", "--reward.value=3"],
    ):
        assert config(flags=flags)["reward"]["init_args"]["value"] == 3.0


def test_an_argument_of_the_old_class_given_with_the_new_one_is_an_error_and_not_dropped() -> None:
    assert "reward.init_args.parts: Fixed has no such key" in problems(
        flags=[f"--reward={HERE}.Fixed", "--reward.parts.a=x"]
    )


def test_every_problem_is_told_at_once_with_full_path_and_suggestion() -> None:
    told = problems(
        {"polcy": 1, "rollout": {"sampling": {"temprature": 3}}},
        flags=["--policy.optimizer.nestrov=1", "--max_steps=x", "--reward.parts.b.class_path=exct_match"],
    )
    assert "polcy: Loop has no such key; did you mean policy?" in told
    assert "rollout.sampling.temprature: Sampling has no such key; did you mean temperature?" in told
    assert "policy.optimizer.init_args.nestrov: Momentum has no such key; did you mean nesterov?" in told
    assert "max_steps must be an integer or null, got 'x'" in told
    assert "reward.init_args.parts.b: no reward is called 'exct_match'; did you mean exact_match?" in told
    assert len(told.splitlines()) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"callbacks": "progress"}, "callbacks must be a list, got 'progress'; write [progress]"),
        ({"reward": {"class_path": "exact_match", "value": 1}}, "did you mean reward.init_args.value?"),
        ({"reward": 3}, "reward must be a name or class_path and init_args, got 3"),
        ({"rollout": 3}, "rollout must be a table, got 3"),
        ({"policy": {"optimizer": f"{HERE}.Fixed"}}, "not a subclass of areal_lit.contracts.optimizer.Optimizer"),
        (
            {"policy": {"optimizer": {"init_args": {"schedule": "sin"}}}},
            "one of 'constant', 'linear', 'cosine', got 'sin'",
        ),
        ({"policy": {"num_ranks": None}}, "policy.num_ranks must be an integer, got None"),
        ({"teachers": {"big": {"num_ranks": 1}}}, "teachers.big.model is required"),
    ],
)
def test_misfits_name_place_value_and_way_out(change: Mapping[str, Any], message: str) -> None:
    assert message in problems(change)


def test_what_is_required_and_missing_is_named_with_what_would_do() -> None:
    with pytest.raises(RecipeError) as told:
        resolve([{"policy": {"model": {"path": "x"}, "optimizer": f"{HERE}.Momentum"}}], cls=Loop)
    assert "policy.optimizer.init_args.lr is required: a number" in str(told.value)
    assert "rollout is required: the keys of Rollout" in str(told.value)


def test_arguments_without_a_class_ask_for_one() -> None:
    told = problems({"policy": {"optimizer": None}}, flags=["--policy.optimizer.lr=1"])
    assert "policy.optimizer names no class_path; give optimizer by name, one of adamw" in told


def test_a_constructor_that_refuses_its_values_is_one_clean_message() -> None:
    parsed = resolve([BASE, {"rollout": {"sampling": {"temperature": -1}}}], cls=Loop)
    with pytest.raises(
        RecipeError, match=r"^rollout\.sampling\.temperature must be 0 \(greedy\), or finite and >= 0\.01, got -1\.0$"
    ):
        parsed.build()


def test_flags_without_value_or_dashes_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"--rollout\.shuffle true or --rollout\.shuffle false"):
        read_flags(["--rollout.shuffle", "--name=x"])
    with pytest.raises(RecipeError, match="'name=x' is no override"):
        read_flags(["name=x"])
    assert read_flags(["--a.b", "-1", "--c=d=e"]) == [(("a", "b"), "-1"), (("c",), "d=e")]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_read_as_python_writes_them(value: float) -> None:
    assert parse_value(repr(value)) == value


@pytest.mark.parametrize(
    ("text", "value"), [("1e-4", 1e-4), ("5E3", 5e3), ("1_000", 1000), ("off", False), ("a: [", "a: [")]
)
def test_values_of_the_command_line(text: str, value: Any) -> None:
    assert parse_value(text) == value


def test_files_and_shipped_names(tmp_path: Path) -> None:
    assert "quickstart" in shipped()
    assert read("quickstart")["name"] == "quickstart"
    with pytest.raises(RecipeError, match=r"no file 'quickstrt'.*did you mean quickstart"):
        read("quickstrt")
    path = tmp_path / "twice.yaml"
    path.write_text("name: a\npolicy: {}\nname: b\n")
    with pytest.raises(RecipeError, match=r"twice\.yaml is no valid YAML: 'name' is given twice"):
        read(path)
    path.write_text("- a\n")
    with pytest.raises(RecipeError, match="must hold a table"):
        read(path)
    path.write_text("a: [\n")
    with pytest.raises(RecipeError, match="no valid YAML"):
        read(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a: \xff\xfe", "is not UTF-8 text"),
        (b"a: " + b"[" * 5000, "is nested too deeply"),
        (b"a: " + b"9" * 5000, "is no valid YAML"),
        (b"a: 2020-99-99", "is no valid YAML"),
        (b"a: &a\n  b: [*a]\n", r"is no valid YAML: \*a stands inside of what it names"),
    ],
)
def test_a_file_that_is_no_recipe_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match=rf"odd\.yaml {reason}"):
        read(path)


def test_merge_keys_fill_a_table_and_are_overridden_by_its_own(tmp_path: Path) -> None:
    path = tmp_path / "merge.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n")
    assert read(path)["b"] == {"x": 1, "y": 3}


def test_an_override_that_yaml_cannot_hold_is_text() -> None:
    assert parse_value("9" * 5000) == "9" * 5000
    assert parse_value("[" * 5000) == "[" * 5000
    with pytest.raises(RecipeError, match="'a' is given twice"):
        parse_value("{a: 1, a: 2}")


def test_a_number_beyond_every_other_is_refused_in_a_sentence() -> None:
    with pytest.raises(RecipeError, match=r"policy\.optimizer\.init_args\.lr must be a number, got 1000"):
        resolve(["quickstart"], ["--policy.optimizer.lr", "1" + "0" * 400])
