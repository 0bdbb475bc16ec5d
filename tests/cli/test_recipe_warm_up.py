"""What a launcher hears of a recipe before it is read equals what it hears of the finished trainer."""

from __future__ import annotations

from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name

import psutil
import pytest

from areal_lit.cli.main import main
from areal_lit.plugins import Plugins
from areal_lit.recipes import load, shipped
from areal_lit.recipes.warm_up import IN_PROCESSES, warm_up_for, warm_up_named
from areal_lit_launchers.inline import Inline

heard: list[list[str]] = []


class Listener(Inline):
    """Notes what it is told to warm up."""

    @classmethod
    def warm_up(cls, names):
        heard.append(sorted(names))
        return nullcontext()


LISTENER = ["--launcher", f"{__name__}.Listener"]


@pytest.fixture(autouse=True)
def _nothing_heard():
    heard.clear()


@pytest.mark.parametrize("recipe", shipped())
def test_names_in_the_text_are_those_of_the_trainer(recipe):
    with warm_up_named([recipe], LISTENER), warm_up_for(load(recipe, overrides=["=".join(LISTENER)])):
        pass
    early, late = heard
    assert set(map(resolve_name, early)) == set(map(resolve_name, late))
    assert "areal_lit.worker" in early
    assert "areal_lit_single.strategy:Single" in early


def test_what_null_takes_away_is_not_heard(tmp_path: Path):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("transport: file\nreference: {strategy: single, optimizer: adamw}\npolicy: {strategy: single}\n")
    second.write_text("base: first.yaml\nreference: null\n")
    with warm_up_named([str(second)], [*LISTENER, "--transport", "null"]):
        pass
    assert heard == [["areal_lit.worker", "areal_lit_single.strategy:Single"]]


def test_the_later_of_two_names_counts(tmp_path: Path):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("launcher: local\nalgorithm: grpo\npolicy: {strategy: single, optimizer: adamw}\n")
    second.write_text(
        f"launcher: {{class_path: {LISTENER[1]}, init_args: {{}}}}\nalgorithm: {{class_path: no.such.One}}\n"
    )
    flags = ["--policy.optimizer.class_path", "some.Optimizer", "--policy.optimizer.lr", "1e-3", "--algorithm=sft"]
    with warm_up_named([str(first), str(second)], flags):
        pass
    expected = {
        "areal_lit.worker",
        "areal_lit_algorithms.sft:SFT",
        "areal_lit_single.strategy:Single",
        "some:Optimizer",
    }
    assert heard == [sorted(expected)]


@pytest.mark.parametrize(
    ("config", "flags"),
    [
        ("no_such_recipe", LISTENER),
        ("quickstart", [*LISTENER, "--algorithm", "no_such_algorithm"]),
        ("quickstart", [*LISTENER, "--max_steps"]),
        ("quickstart", ["--launcher", "no.such.Launcher"]),
        ("quickstart", ["--launcher", "null"]),
    ],
)
def test_what_is_wrong_is_left_to_the_reader(config, flags):
    with warm_up_named([config], flags):
        pass
    assert heard == []


def test_what_components_preload_exists():
    plugins = Plugins.discover()
    classes = [plugins.load(plugin.kind, plugin.path) for plugin in plugins if plugin.kind in IN_PROCESSES]
    names = {name for cls in classes for name in cls.preload}
    assert "areal_lit_inference.transformers.server" in names
    assert [name for name in sorted(names) if find_spec(name) is None] == []


def test_a_refused_recipe_leaves_no_process(capsys):
    before = set(psutil.Process().children(recursive=True))
    assert main(["fit", "--config", "quickstart", "--no_such_key", "1"]) == 2
    assert "no_such_key" in capsys.readouterr().err
    assert set(psutil.Process().children(recursive=True)) <= before
