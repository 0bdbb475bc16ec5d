"""The display of a real run on a real terminal: its start, its steps, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from terminal_emulator import TerminalEmulator


@pytest.mark.slow
def test_a_run_is_shown_from_its_start_and_leaves_a_sane_terminal_when_interrupted(tmp_path):
    argv = [
        sys.executable, "-m", "areal_lit", "fit", "--config", "quickstart_inline", "--max_steps", "100000",
        "--runs_dir", str(tmp_path), "--evaluation.every_steps", "2", "--evaluation.max_prompts", "4",
    ]  # fmt: skip
    with TerminalEmulator(argv=argv) as terminal:
        terminal.wait_for("quickstart_inline  step 0/100000", "now        starting")
        labels = ("reward ", "rollouts ", "tokens/s ", "step time ", "now ")
        lines = terminal.wait_for(
            "evaluation  step ", "/100000  ━",
            such_that=lambda lines: all(sum(line.startswith(label) for line in lines) == 1 for label in labels),
        )  # fmt: skip
        assert max(map(len, lines)) <= 80
        assert not any("…" in line for line in lines)
        os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.wait() == 130
        text = "".join(terminal.lines())  # the terminal has broken the long ones
        assert not terminal.screen.cursor.hidden
    assert "quickstart_inline: interrupted at step" in text
    assert f"next     areal-lit fit --config {tmp_path}/quickstart_inline/config.yaml --resume auto" in text
    assert "━" not in text
    assert "now  " not in text
