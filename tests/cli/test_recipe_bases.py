"""A recipe laid over a base: what it leaves out comes from there, wherever both lie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from areal_lit import recipes
from areal_lit.cli.main import main
from areal_lit.recipes import RecipeError, layers, resolve


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_base_is_as_an_earlier_config(tmp_path: Path) -> None:
    own = "policy: {optimizer: {init_args: {lr: 1.0e-4}}}\nreward: {class_path: format, init_args: {pattern: a}}\n"
    based = write(tmp_path / "based.yaml", f"base: quickstart\n{own}")
    plain = write(tmp_path / "plain.yaml", own)
    assert resolve([based]).config == resolve(["quickstart", plain]).config
    assert resolve([{"base": str(based), "seed": 5}]).config == {**resolve([based]).config, "seed": 5}
    assert resolve([{"base": None, **recipes.read("quickstart")}]).config == resolve(["quickstart"]).config


def test_files_are_found_beside_the_recipe_that_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "common" / "root.yaml", "seed: 1\nname: root\n")
    write(tmp_path / "common" / "middle.yaml", "base: root.yaml\nseed: 2\n")
    top = write(tmp_path / "mine" / "top.yaml", "base: ../common/middle.yaml\nmax_steps: 3\n")
    monkeypatch.chdir(tmp_path / "common")
    expected = [{"seed": 1, "name": "root"}, {"seed": 2}, {"max_steps": 3}]
    assert layers(top) == layers("../mine/top.yaml") == expected


def test_a_misspelt_base_is_the_only_problem_told(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as told:
        resolve([write(tmp_path / "based.yaml", "bse: quickstart\nmax_steps: 3\n")])
    assert str(told.value) == "bse: Trainer has no such key; did you mean base?"


def test_what_a_recipe_drops_of_its_base_is_no_news_but_what_a_user_drops_is(tmp_path: Path) -> None:
    based = write(tmp_path / "based.yaml", "base: quickstart\nalgorithm: sft\n")
    assert "decoupled" not in resolve([based]).config["algorithm"]["init_args"]
    assert resolve([based]).notes == ()
    (note, _) = resolve([{"base": "quickstart"}], ["--algorithm", "sft"]).notes
    assert note.startswith("algorithm.init_args.decoupled is dropped")
    with pytest.raises(RecipeError, match=r"algorithm\.init_args\.decoupled: SFT has no such key"):
        resolve([{"base": "quickstart", "algorithm": {"class_path": "sft", "init_args": {"decoupled": True}}}])


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"a": "base: quikstart"}, r"a\.yaml: base: there is no file 'quikstart', .*did you mean quickstart"),
        ({"a": "base: [quickstart]"}, r"a\.yaml: base must be a file or the name of a shipped recipe, got \['quicks"),
        ({"a": "base: a.yaml"}, r"a\.yaml: base: a\.yaml is its own base; remove one `base:`"),
        ({"a": "base: ./b.yaml", "b": "base: ../TMP/a.yaml"}, r"a\.yaml: base: \./b\.yaml: base: \S+ is its own base"),
        ({"a": f"base: {'n' * 300}"}, r"a\.yaml: base: n{200} cannot be looked for: File name too long; name another"),
        ({"a": "base: ~nobody-of-that-name/b.yaml"}, r"a\.yaml: base: ~nobody-of-that-name/b\.yaml cannot be looked f"),
        ({"a": "base: b.yaml", "b": "x: ["}, r"a\.yaml: base: b\.yaml is no valid YAML"),
    ],
)
def test_a_base_that_cannot_be_is_told_with_the_file_that_names_it(
    tmp_path: Path, files: dict[str, str], told: str
) -> None:
    for name, text in files.items():
        write(tmp_path / f"{name}.yaml", text.replace("TMP", tmp_path.name))
    with pytest.raises(RecipeError, match=told):
        resolve([tmp_path / "a.yaml"])


def test_the_command_line_has_configs_for_bases(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--config", "quickstart", "--base", "quickstart_inline"]) == 2
    assert "give it as the first --config" in capsys.readouterr().err


def test_a_run_keeps_the_whole_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    based = write(tmp_path / "based.yaml", "base: quickstart\nmax_steps: 3\n")
    assert main(["fit", "--config", str(based), "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert "base" not in printed
    assert printed == resolve(["quickstart"], ["--max_steps", "3"]).config


def test_the_schema_lets_a_recipe_leave_to_its_base_what_it_must_have(capsys: pytest.CaptureFixture[str]) -> None:
    main(["schema"])
    schema = Draft202012Validator(json.loads(capsys.readouterr().out))
    own = {"policy": {"optimizer": {"init_args": {"lr": 1e-4}}}, "algorithm": {"init_args": {"decoupled": True}}}
    assert schema.is_valid({"base": "quickstart", **own})
    assert not schema.is_valid(own)
    assert not schema.is_valid({"base": "quickstart", "polici": {}})
    assert not schema.is_valid({"base": 3})
    for misspelt in ({"class_path": "grpo", "init_args": {"decoupeld": True}}, {"class_path": "grp"}):
        assert not schema.is_valid({"base": "quickstart", "algorithm": misspelt})
