"""The likeliest mistakes of a first user: ``validate`` names value, rule and way out, and starts nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from catalogue_mistakes import MISTAKES, TINY, component, jsonl
from catalogue_run import told_by_python

from areal_lit import recipes
from areal_lit.cli.main import main
from areal_lit.types import ModelSpec

PARTS = """
from areal_lit_inference.transformers import Transformers


class Deaf(Transformers):
    '''Loads no receiver.'''

    receivers = frozenset()


def graded(completion, solution):
    return 1.0
"""


def furnish(directory: Path) -> None:
    """What a first user's directory holds."""
    texts = {
        "file.txt": "",
        "old_run/hf/config.json": "{}",
        "adapter/adapter_config.json": "{}",
        "no_weights/config.json": json.dumps(TINY),
        "sums.jsonl": '{"question": "1+1=", "answer": "2", "prose": "It is two."}\n' * 3,
        "empty.jsonl": "\n",
        "answered.jsonl": '{"prompt": "1+1=", "answer": "2"}\n',
        "malformed.jsonl": '{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+1=", "answer": }\n',
        "long.jsonl": json.dumps({"prompt": "1" * 1500, "answer": "2"}),
        "runs/taken/config.yaml": "name: taken",
        "runs/taken/metrics.csv": "step\n1\n",
        "catalogue_parts.py": PARTS,
        "catalogue_broken.py": "1 / 0",
    }
    for distribution in ("catalogue-one", "catalogue-two"):
        metadata = f"{distribution.replace('-', '_')}-1.0.dist-info"
        texts[f"{metadata}/METADATA"] = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        texts[f"{metadata}/entry_points.txt"] = "[areal_lit.rewards]\ncatalogue_twice = catalogue_parts:Twice\n"
    (directory / "empty").mkdir()
    for name, text in texts.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A first user's directory; it is the current one, and on ``sys.path``."""
    furnish(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def outcomes(once: Callable[[str, Callable[[Path], None]], Path]) -> Mapping[str, Mapping[str, Any]]:
    """What each mistake was told, from one process that counts what it starts."""

    def validate(directory: Path) -> None:
        furnish(directory)
        runs = sorted(directory.joinpath("runs").rglob("*"))
        path = os.pathsep.join([str(directory), str(Path(__file__).parent)])
        command = [sys.executable, "-m", "catalogue_run", "outcomes.json"]
        subprocess.run(command, cwd=directory, env={**os.environ, "PYTHONPATH": path}, check=True, timeout=240)
        assert sorted(directory.joinpath("runs").rglob("*")) == runs

    return json.loads(once("catalogue", validate).joinpath("outcomes.json").read_text())


@pytest.mark.parametrize("name", MISTAKES)
def test_validate_names_value_rule_and_way_out(name: str, outcomes: Mapping[str, Mapping[str, Any]]) -> None:
    outcome = outcomes[name]
    assert outcome["code"] in (1, 2)
    assert outcome["started"] == []
    for told in (outcome["command"], outcome["python"]):
        assert [part for part in MISTAKES[name][1] if part not in told] == [], told
        assert told.count("Traceback") == (name == "plugin that fails to import"), told


def test_every_constructor_tells_its_first_mistake_at_once(desk: Path) -> None:
    told = told_by_python(
        {
            "policy": {"optimizer": component("adamw", lr=1e-4, beta1=1.5, eps=-1.0), "num_threads": -1},
            "rollout": {"max_staleness": -1, "failure_budget": 2.0, "sampling": {"top_p": 0.0}},
            "sync": {"interval": 0},
            "data": component("mixture", sources={"sums": {"data": component("arithmetic", digits=0), "weight": -1.0}}),
        }
    )
    assert told.splitlines() == [
        "policy.optimizer: beta1 must be in [0, 1), got 1.5",
        "data.sources.sums.data: digits must be in 1..9, got 0",
        "rollout.sampling.top_p must be in (0, 1], got 0.0",
        "sync.interval must be >= 1, got 0",
    ]


def test_constructors_around_refused_ones_are_told_once_those_are_right(desk: Path) -> None:
    told = told_by_python({"policy": {"num_threads": -1}, "rollout": {"max_staleness": -1, "failure_budget": 2.0}})
    assert told.splitlines() == [
        "policy: num_threads must be >= 0, got -1",
        "rollout.max_staleness must be >= 0, got -1",
    ]


def test_quoted_numbers_and_switches_are_what_they_say(desk: Path) -> None:
    trainer = recipes.load(
        "quickstart",
        {"policy": {"optimizer": component("adamw", lr="1e-5", warmup_steps="3")}, "overwrite": "true"},
    )
    assert trainer.policy.optimizer is not None
    assert (trainer.policy.optimizer.lr, trainer.policy.optimizer.warmup_steps, trainer.overwrite) == (1e-5, 3, True)


def test_a_checkpoint_to_go_on_from_must_be_one(desk: Path) -> None:
    trainer = recipes.load("quickstart", {"name": "taken"})
    assert trainer.validate(resume="auto") == []
    (rule,) = trainer.validate(resume="empty")
    assert rule.startswith("there is no checkpoint to be had at 'empty': it has no complete.json")
    assert rule.endswith("or auto")


def test_a_name_that_is_taken_is_refused_by_a_fit_and_noted_of_a_valid_recipe(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (rule,) = recipes.load("quickstart", {"name": "taken"}).validate()
    parts = ("runs/taken", "holds a run already", "--resume auto", "--overwrite true")
    assert [part for part in parts if part not in rule] == []
    named = ["--config", "quickstart", "--name", "taken"]
    assert main(["fit", *named]) == 1
    assert rule in capsys.readouterr().err
    assert main(["validate", *named]) == 0
    said, *_, note = capsys.readouterr().out.splitlines()
    assert said == "the recipe is valid; it would start:"
    assert note == f"note: {rule}"
    assert main(["validate", *named, "--resume", "auto"]) == 0
    assert "note:" not in capsys.readouterr().out
    assert main(["validate", *named, "--max_steps", "0"]) == 1
    assert "breaks 1 rule:" in capsys.readouterr().err


def test_precision_is_checked_from_python_too() -> None:
    with pytest.raises(ValueError, match=r"model\.dtype must be float32 or bfloat16, got 'float16'"):
        ModelSpec(path="x", dtype="float16")  # type: ignore[arg-type]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_named(desk: Path) -> None:
    desk.joinpath("runs").chmod(0o500)
    (rule,) = recipes.load("quickstart").validate()
    assert "runs is not writable; change its permissions or choose another place" in rule


@pytest.mark.parametrize("place", ["logs", "checkpoints"])
def test_a_place_within_a_run_that_cannot_be_written_is_named(desk: Path, place: str) -> None:
    (run := desk / "runs" / "begun").mkdir()
    (run / place).touch()
    (rule,) = recipes.load("quickstart", {"name": "begun"}).validate(resume="auto")
    assert re.fullmatch(rf"runs/begun/{place} cannot be made: .*runs/begun/{place} is a file; choose another .*", rule)


def test_half_a_character_is_a_matter_for_its_row(desk: Path) -> None:
    desk.joinpath("half.jsonl").write_text(json.dumps({"prompt": "1+1=\ud800", "answer": "2"}))
    assert recipes.load("quickstart", jsonl("half.jsonl")).validate() == []


def test_some_rows_without_an_answer_are_no_mistake(desk: Path) -> None:
    rows = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "say something"}]
    desk.joinpath("some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert recipes.load("quickstart", jsonl("some.jsonl")).validate() == []
