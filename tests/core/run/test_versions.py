"""What a run says it ran with."""

from __future__ import annotations

import json
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from areal_lit.logs import Logs
from areal_lit.run.directory import RunDirectory
from areal_lit.run.versions import versions


def git(directory: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=directory, check=True, capture_output=True)


def test_a_run_keeps_versions_and_no_commit_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with RunDirectory(tmp_path / "run", config={}, resume=False, overwrite=False, logs=Logs()) as directory:
        directory.begin()
    kept = json.loads((tmp_path / "run" / "versions.json").read_text())
    assert kept["python"] == platform.python_version()
    assert kept["torch"] == metadata.version("torch")
    assert kept["commit"] is None


def test_the_commit_is_that_of_the_project_and_says_whether_it_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reward.py").write_text("one")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "reward.py")
    git(tmp_path, "commit", "-qm", "first")
    git(tmp_path, "tag", "v1")
    commit = versions()["commit"]
    assert commit is not None
    assert len(commit) == 40
    (tmp_path / "reward.py").write_text("two")
    assert versions()["commit"] == f"{commit}-dirty"
