"""A display that can no longer be written to ends nothing."""

from __future__ import annotations

import io
import os
import sys

import pytest
from course_cases import stand_in_trainer

from areal_lit_callbacks.progress import Progress
from areal_lit_callbacks.progress.output import Output


def full():
    return open("/dev/full", "w")


def broken_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("colours", ["", "1"])
@pytest.mark.parametrize("make", [full, broken_pipe])
def test_a_run_goes_on_without_its_display_and_says_so_once(monkeypatch, caplog, make, colours):
    monkeypatch.setenv("FORCE_COLOR", colours)
    stream = make()
    monkeypatch.setattr(sys, "stdout", stream)
    shown = Progress(every_s=0)
    shown.configure(stand_in_trainer())
    shown.fit_start(stand_in_trainer())
    for step in range(1, 4):
        shown.step_end(step, {"rollout/reward": 0.5})
    shown.fit_end("finished")
    assert [record.message.split(":")[0] for record in caplog.records] == ["nothing more is shown, the run goes on"]
    print("finished", flush=True)
    stream.close()


def test_a_file_that_is_told_to_have_colours_gets_plain_lines(monkeypatch, tmp_path):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with (tmp_path / "log").open("w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        shown = Progress(every_s=0)
        shown.configure(stand_in_trainer())
        shown.fit_start(stand_in_trainer())
        shown.step_end(1, {"rollout/reward": 0.5})
        shown.fit_end("finished")
    text = (tmp_path / "log").read_text()
    assert "step 1/200  reward 0.500" in text
    assert "\x1b" not in text


def test_a_closed_stream_is_lost_too(caplog):
    output = Output(closed())
    assert output.write("text") == 4
    output.flush()
    assert len(caplog.records) == 1


def test_what_can_be_written_is_written():
    stream = io.StringIO()
    output = Output(stream)
    output.write("text")
    output.flush()
    assert output.getvalue() == "text"
