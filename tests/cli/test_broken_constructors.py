"""Constructors of plugins that are broken: told under their key, with class and place, and exit code 2."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from areal_lit.cli.main import WRONG_USE, main
from areal_lit.contracts import Reward
from areal_lit.recipes import RecipeError, load
from areal_lit.types import Trajectory


class Broken(Reward):
    """Fails of anything but its arguments."""

    def __init__(self, *, how: str) -> None:
        if how == "lookup":
            dict[str, int]()[how]
        if how == "type":
            len(None)  # type: ignore[arg-type]
        if how == "exit":
            sys.exit(0)
        if how == "wordless":
            raise ValueError

    def score(self, trajectory: Trajectory) -> float:
        return 0.0


class Untyped(Reward):
    """Says of no argument what it is."""

    def __init__(self, *, weight, label="x") -> None:  # type: ignore[no-untyped-def]
        self.weight = weight
        self.label = label

    def score(self, trajectory: Trajectory) -> float:
        return 0.0


RAISED = {
    "lookup": "KeyError: 'lookup'",
    "type": "TypeError: object of type 'NoneType' has no len()",
    "exit": "SystemExit: 0",
    "wordless": "ValueError",
}


@pytest.mark.parametrize("how", RAISED)
def test_whatever_a_constructor_raises_is_told_under_its_key(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["validate", "--config", "quickstart_inline", f"--reward={__name__}.Broken", f"--reward.how={how}"])
    told = capsys.readouterr().err
    assert code == WRONG_USE
    assert f"reward.init_args: the constructor of {__name__}.Broken (no distribution) raised {RAISED[how]};" in told
    assert f'{Path(__file__).name}", line' in told
    assert "areal_lit/recipes/construction.py" not in told, "only the constructor's own lines help its author"


def test_a_broken_constructor_inside_of_another_is_told_beside_other_mistakes() -> None:
    parts = {"a": {"class_path": f"{__name__}.Broken", "init_args": {"how": "lookup"}}, "b": "exact_match"}
    reward = {"class_path": "composite", "init_args": {"parts": parts}}
    with pytest.raises(RecipeError) as told:
        load("quickstart_inline", {"reward": reward, "rollout": {"max_attempts": 0}})
    assert "reward.parts.a.init_args: the constructor of" in str(told.value)
    assert "rollout.max_attempts must be >= 1, got 0" in str(told.value)


def test_an_argument_without_annotation_is_told_as_the_plugins_fault(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["validate", "--config", "quickstart_inline", f"--reward={__name__}.Untyped", "--reward.label=y"]
    assert main(arguments) == WRONG_USE
    told = capsys.readouterr().err
    for expected in ("reward.init_args.weight is required", "reward.init_args.label must be", "annotates none"):
        assert expected in told
    assert "_empty" not in told
    assert main(["fit", f"--reward.help={__name__}.Untyped"]) == 0
    assert "_empty" not in capsys.readouterr().out
