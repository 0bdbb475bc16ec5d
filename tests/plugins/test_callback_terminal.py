"""The display on a real pseudo-terminal: what stands where, what goes above it, and what is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from terminal_emulator import TerminalEmulator

HERE = Path(__file__).parent
SCRIPT = f"""
import logging, sys, warnings
from contextlib import ExitStack
sys.path.insert(0, {str(HERE)!r})
from course_cases import METRICS, stand_in_trainer
from areal_lit_callbacks.progress import Progress

logging.basicConfig(format="%(levelname)s %(message)s")
trainer = stand_in_trainer()
progress = Progress(refresh_per_s=50, every_s=1e6)
during = ExitStack()
for command in commands:
    exec(command)
"""


@pytest.fixture
def terminal():
    opened = []

    def open_terminal(**arguments):
        emulator = TerminalEmulator(script=SCRIPT, **arguments)
        opened.append(emulator)
        return emulator

    yield open_terminal
    for emulator in opened:
        emulator.__exit__()


def begin(emulator):
    emulator.tell("progress.configure(trainer)")
    emulator.tell("progress.fit_start(trainer)")
    emulator.tell("for step in range(1, 50): progress.step_end(step, METRICS)")


def end(emulator, status="finished"):
    emulator.tell(f"progress.fit_end({status!r})")
    emulator.tell("raise SystemExit(0)")
    assert emulator.wait() == 0
    assert not emulator.screen.cursor.hidden
    return emulator.lines()


def test_everything_stands_on_eighty_columns_from_the_start_on(terminal):
    emulator = terminal()
    emulator.tell("progress.configure(trainer)")
    emulator.tell("during.enter_context(trainer.activity.during('loading the policy'))")
    emulator.wait_for(
        "starting: loading the policy",
        such_that=lambda lines: [line.split()[0] for line in lines if line] == ["quickstart", "now"],
    )
    emulator.tell("during.close(); progress.fit_start(trainer)")
    emulator.tell("for step in range(1, 50): progress.step_end(step, METRICS)")
    emulator.tell("progress.step_end(50, {**METRICS, 'rollout/equal_rewards': 1.0})")
    emulator.tell("during.enter_context(progress.phase('wait_batch'))")
    emulator.tell("during.enter_context(trainer.activity.during('waiting for 3 of 16 groups; 12 running'))")
    labels = [
        "quickstart: from step 0 of 200",
        *("quickstart", "reward", "rollouts", "tokens/s", "step time", "warning", "now"),
    ]
    lines = emulator.wait_for(
        "3 of 16 groups", "warning", such_that=lambda lines: [line.split("  ")[0] for line in lines] == labels
    )
    assert "step 50/200" in lines[1]
    assert max(map(len, lines)) <= 80
    end(emulator)


def test_notes_log_lines_prints_and_warnings_go_above_and_nothing_is_left_over(terminal):
    emulator = terminal()
    begin(emulator)
    emulator.wait_for("step 49/200")
    emulator.tell("progress.evaluate_end(49, {'eval/sums/reward': 0.75})")
    emulator.tell("progress.evaluate_end(49, {f'eval/many/pass@{k}': 0.5 for k in (1, 2, 4, 8, 16)})")
    emulator.tell("logging.getLogger('areal_lit.rollout').warning('a log line')")
    emulator.tell("warnings.warn('a warning')")
    emulator.tell("print('a print'); print('to stderr', file=sys.stderr); print('without an end', end='')")
    emulator.wait_for("a print", "to stderr")
    lines = end(emulator)
    text = "\n".join(lines)
    assert "evaluation  step 49  many  pass@1 0.500  pass@2 0.500  pass@4 0.500" in lines
    order = ["evaluation  step 49  sums  reward 0.750", "WARNING a log line", "UserWarning: a warning", "a print",
             "to stderr", "without an end", "quickstart: finished at step 49 of 200", "next"]  # fmt: skip
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    for left_over in ("now ", "step time", "━", "  best"):
        assert left_over not in text


def test_log_handlers_and_streams_are_given_back(terminal):
    emulator = terminal()
    emulator.tell("before = (sys.stdout, sys.stderr, logging.root.handlers[0].stream)")
    begin(emulator)
    emulator.tell("progress.fit_end('failed')")
    emulator.tell("print(before == (sys.stdout, sys.stderr, logging.root.handlers[0].stream))")
    emulator.wait_for("True")


def test_an_error_stream_that_is_a_file_stays_one(terminal, tmp_path):
    with (tmp_path / "errors").open("wb") as errors:
        emulator = terminal(stderr=errors)
        begin(emulator)
        emulator.tell("logging.warning('to the file')")
        end(emulator)
    assert "to the file" in (tmp_path / "errors").read_text()
    assert b"to the file" not in emulator.bytes


@pytest.mark.parametrize(("columns", "rows"), [(40, 24), (80, 5), (200, 50)])
def test_other_sizes_neither_wrap_nor_scroll(terminal, columns, rows):
    emulator = terminal(columns=columns, rows=rows)
    begin(emulator)
    emulator.wait_for(
        "step 49/200",
        such_that=lambda lines: (
            sum("49/200" in line for line in lines) == 1 and not any("step 48" in line for line in lines)
        ),
    )
    end(emulator)


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"CI": "true"}, {"CI": "true", "FORCE_COLOR": "1"}])
def test_a_dumb_terminal_and_a_ci_job_get_plain_lines(terminal, environ):
    emulator = terminal(environ=environ)
    begin(emulator)
    lines = end(emulator)
    assert lines[:3] == [
        "quickstart: starting policy, reference, engine, rewards",
        "quickstart: from step 0 of 200",
        "step 1/200  reward 0.500  stale 1.2 (max 2)  length 6.5  truncated 2%  in 40.0k",
    ]
    assert b"\x1b" not in emulator.bytes


def test_without_colours_the_picture_stays(terminal):
    emulator = terminal(environ={"NO_COLOR": "1"})
    begin(emulator)
    emulator.wait_for("step 49/200", "━━━")
    end(emulator)
    assert not any(f"\x1b[3{digit}m".encode() in emulator.bytes for digit in range(8))


def test_a_terminal_that_goes_away_ends_nothing(terminal, tmp_path):
    emulator = terminal()
    begin(emulator)
    emulator.wait_for("step 49/200")
    emulator.tell("import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    emulator.tell("null = os.open('/dev/full', os.O_WRONLY); os.dup2(null, 1)")
    emulator.tell("for step in range(50, 60): progress.step_end(step, METRICS)")
    emulator.tell("progress.fit_end('finished')")
    emulator.tell(f"open({str(tmp_path / 'end')!r}, 'w').write(str(progress._course.step)); os._exit(0)")
    assert emulator.wait() == 0
    assert (tmp_path / "end").read_text() == "59"
