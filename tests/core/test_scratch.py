"""Scratch directories: one's own, whoever else lives or died there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from areal_lit.logs import Logs
from areal_lit.run.directory import RunDirectory
from areal_lit.scratch import SHARED_MEMORY, Scratch, abandoned

DIES = """
import os, signal, sys
from pathlib import Path
from areal_lit.scratch import Scratch
scratch = Scratch(Path(sys.argv[1]))
(scratch.path / "weights").touch()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_is_empty_and_gone_when_closed(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "new")
    (scratch.path / "file").touch()
    scratch.close()
    scratch.close()
    assert list((tmp_path / "new").iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_lives_is_not(tmp_path: Path) -> None:
    alive = Scratch(tmp_path)
    died = subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], check=False)
    assert died.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob("*/weights"))) == 1
    new = Scratch(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {alive.path.name, new.path.name}
    alive.close()
    new.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
def test_what_another_user_left_stays_and_hinders_nobody(tmp_path: Path) -> None:
    (theirs := tmp_path / "areal-lit-scratch-theirs").mkdir()
    os.chown(theirs, os.geteuid() + 1, -1)
    scratch = Scratch(tmp_path)
    assert theirs.exists()
    scratch.close()


def test_a_lock_that_cannot_be_opened_stays_and_hinders_nobody(tmp_path: Path) -> None:
    (locked := tmp_path / "areal-lit-scratch-locked").mkdir()
    (locked / ".scratch-lock").mkdir()
    scratch = Scratch(tmp_path)
    assert locked.exists()
    scratch.close()


@pytest.mark.parametrize("name", ["areal-lit-x", "areal-lit-scratch-x"])
def test_a_finished_run_beside_it_stays(tmp_path: Path, name: str) -> None:
    with RunDirectory(tmp_path / name, config={}, resume=False, overwrite=False, logs=Logs()) as run:
        run.begin()
    scratch = Scratch(tmp_path)
    assert (tmp_path / name / "config.yaml").exists()
    assert abandoned(tmp_path) == []
    scratch.close()


def test_by_default_it_is_in_shared_memory_with_room_for_a_socket_path() -> None:
    scratch = Scratch()
    assert len(str(scratch.path / "100.sock")) < 100
    assert scratch.path.parent == SHARED_MEMORY or not os.path.isdir(SHARED_MEMORY)
    assert scratch.path.stat().st_mode & 0o077 == 0
    scratch.close()
