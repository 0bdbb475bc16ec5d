"""Two runs in one directory at once: the second is refused, whatever it asked for, and the first loses nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from command import checkpoints, end, start
from fault_parts import small
from run_processes import RUN_TIMEOUT_S


@pytest.mark.slow
def test_a_directory_in_use_is_refused_and_loses_nothing(tmp_path: Path) -> None:
    wait = {"class_path": "signalling.WaitFor", "init_args": {"path": str(tmp_path)}}
    first = start(tmp_path, callbacks=[wait], checkpoint={"every_steps": 1, "export_hf": False})
    try:
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while not (tmp_path / "waits").exists():
            assert first.poll() is None, first.communicate()[1]
            assert time.monotonic() < deadline, "the first run has not come to its first step"
            time.sleep(0.05)
        files = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.name != ".lock"}
        for resume, overwrite, says in (
            (None, False, "holds a run already; go on with it"),
            ("auto", False, r"is in use by process \d+ on .*; wait for its end or end it, or choose another name"),
            (None, True, r"is in use by process \d+ on "),
        ):
            with pytest.raises((FileExistsError, ValueError), match=says):
                small(tmp_path, overwrite=overwrite).fit(resume=resume)
        assert {path: path.stat().st_mtime_ns for path in files} == files
    finally:
        (tmp_path / "go").touch()
        code, told = end(first, tmp_path)
    assert code == 0, told
    assert checkpoints(tmp_path)[-1] == 4
    assert (tmp_path / "run" / "metrics.csv").read_bytes().count(b"\n") == 5
