"""Runs started by a person's script: without a guard, without a file, within a running event loop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
print("top level of", __name__)
import areal_lit.recipes

trainer = areal_lit.recipes.load("quickstart_sft", overrides=["max_steps=1", "checkpoint.at_end=false", "callbacks=[]"])
trainer.fit()
"""

IN_A_LOOP = """
import asyncio

async def cell():
    exec(script, {"__name__": "__main__"})

asyncio.run(cell())
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["a script without a guard", "a notebook"])
def test_processes_of_a_run_import_no_script(tmp_path: Path, way: str) -> None:
    if way == "a notebook":
        arguments, text = ["-"], f"script = {SCRIPT!r}\n{IN_A_LOOP}"
    else:
        (tmp_path / "script.py").write_text(SCRIPT)
        arguments, text = ["script.py"], ""
    done = subprocess.run(
        [sys.executable, *arguments], input=text, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("top level of __main__") == 1
    logs = tmp_path / "runs" / "quickstart_sft" / "logs"
    assert (logs / "policy-0.log").read_text() == ""
    assert (logs / "fork-server.log").read_text() == ""
