from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from areal_lit.testing.reward import check_reward, completion
from areal_lit.types import Scored, Unscored
from areal_lit_rewards.function import Function


def by_answer(completion: str, answer: str) -> float:
    return float(completion == answer)


def everything(completion: str, prompt: str, trajectory: Any, bonus: float = 0.5, **fields: Any) -> Scored:
    assert trajectory.text == completion
    return Scored(value=len(prompt) + bonus, parts={name: float(value) for name, value in fields.items()})


def declines(completion: str) -> Unscored:
    return Unscored(reason="not today")


def by_position(completion: str, /) -> float:
    return 1.0


async def in_future(completion: str) -> float:
    return 1.0


PATHS = [f"{__name__}.by_answer", f"{__name__}:by_answer", by_answer]


@pytest.mark.parametrize("function", PATHS, ids=["dotted", "colon", "callable"])
def test_a_function_is_called_with_what_it_names(function: Any) -> None:
    reward = Function(function=function)
    check_reward(
        reward, [(completion("4", answer="4"), 1.0), (completion("5", answer="4"), 0.0), (completion("5"), None)]
    )


def test_defaults_and_the_rest_of_the_fields() -> None:
    reward = Function(function=everything)
    reward.setup()
    score = cast(Scored, reward.score(completion("x", prompt="abc", level=2, bonus=1.0)))
    assert score.value == 4.0
    assert score.parts == {"level": 2.0}
    check_reward(Function(function=declines), [(completion("x"), None)])


def test_a_missing_field_is_named() -> None:
    reward = Function(function=by_answer)
    reward.setup()
    with pytest.raises(ValueError, match=r"wants 'answer'; there is only .*'solution'"):
        reward.score(completion("x", solution="x"))


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        ("nowhere", "must be a dotted path"),
        ("no_such_package.fn", "set PYTHONPATH"),
        (f"{__name__}.by_answr", "has no 'by_answr'; did you mean by_answer?"),
        (f"{__name__}.PATHS", "cannot be called"),
        (by_position, "called by keyword"),
        (in_future, "async"),
    ],
)
def test_what_cannot_be_called_is_found_at_setup_and_by_validate(function: Any, complaint: str) -> None:
    reward = Function(function=function)
    with pytest.raises(ValueError, match=re.escape(complaint)):
        reward.setup()
    (rule,) = reward.rules(cast(Any, None))
    assert complaint in rule


@pytest.mark.parametrize("line", ["def f(completion) return 1", "import no_such_package", "f = undefined"])
def test_a_module_that_cannot_be_imported_is_a_broken_rule_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    (tmp_path / "broken_reward.py").write_text(line)
    monkeypatch.syspath_prepend(tmp_path)
    reward = Function(function="broken_reward.f")
    (rule,) = reward.rules(cast(Any, None))
    assert line in rule
    reward.check(completion("4").prompt.example)  # the rule says it all


def test_a_function_of_the_script_is_refused_by_the_pool_and_runs_inline() -> None:
    script = """
import asyncio, pathlib, tempfile
from areal_lit.logs import Logs
from areal_lit.rewarding import Rewarding, Scorer
from areal_lit.testing.reward import completion
from areal_lit_rewards.function import Function
def mine(completion): return 7.0
reward = Function(function=mine)
async def main(path):
    try:
        Scorer(Rewarding(), rewards={"default": reward}, in_process=False, log_dir=path, logs=Logs()).start()
    except ValueError as error:
        print(error)
    scorer = Scorer(Rewarding(), rewards={"default": reward}, in_process=True, log_dir=path, logs=Logs())
    scorer.start()
    print((await scorer.score(reward, [completion("x")]))[0].reward)
    scorer.stop()
with tempfile.TemporaryDirectory() as path:
    asyncio.run(main(pathlib.Path(path)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    refusal, reward = done.stdout.splitlines()
    assert "mine is defined in the script or notebook itself" in refusal
    assert "inline launcher" in refusal
    assert reward == "7.0"
