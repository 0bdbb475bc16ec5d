from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from areal_lit.cli.main import main
from areal_lit.contracts import KINDS


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_new_package_declares_a_class_of_its_kind(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "new", "my_thing", "--kind", kind, "--directory", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"next: cd {tmp_path / 'my-thing'} && pip install")
    project = tomllib.loads((tmp_path / "my-thing" / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {KINDS[kind].group: {"my_thing": "my_thing:MyThing"}}
    tree = ast.parse((tmp_path / "my-thing" / "src" / "my_thing" / "__init__.py").read_text())
    assert any(isinstance(node, ast.ClassDef) and node.name == "MyThing" for node in tree.body)


@pytest.mark.slow
def test_new_packages_pass_their_own_conformance_tests(tmp_path: Path) -> None:
    for kind in KINDS:
        assert main(["plugins", "new", f"my_{kind}", "--kind", kind, "--directory", str(tmp_path)]) == 0
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:asyncio", *map(str, tmp_path.glob("*/tests"))],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, tmp_path.glob("*/src")))},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert set(re.findall(r"test_my_(\w+)\.py::\S+ PASSED", ran.stdout)) == set(KINDS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My-Thing", "must be lower-case letters"),
        ("class", "must be lower-case letters"),
        ("../up", "must be lower-case letters"),
        ("json", "importable package already"),
        ("areal_lit", "importable package already"),
        ("exact_match", "short name of an installed reward"),
    ],
)
def test_names_that_would_not_work_are_refused(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "new", name, "--kind", "reward", "--directory", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my-thing").mkdir()
    assert main(["plugins", "new", "my_thing", "--kind", "reward", "--directory", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
