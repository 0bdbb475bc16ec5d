"""All loggers of a run as one: who is told what, in which order, and what a failing one changes."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from areal_lit.contracts import RunLogger
from areal_lit.run.loggers import LoggerError, Loggers


class Recorder(RunLogger):
    """Notes its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def setup(self, run_dir, config, step):
        self.calls.append(("setup", step))

    def metrics(self, step, values):
        self.calls.append(("metrics", step))

    def samples(self, step, groups):
        self.calls.append(("samples", step))

    def figure(self, step, name, path):
        self.calls.append(("figure", step, name))

    def artifact(self, step, name, path):
        self.calls.append(("artifact", step, name))

    def close(self, status):
        self.calls.append(("close", status))


class Draws(Recorder):
    """Has a figure after every call of metrics and close."""

    draws = True

    def __init__(self) -> None:
        super().__init__()
        self.drawn: dict[str, Path] = {}

    def metrics(self, step, values):
        self.drawn["reward"] = Path("reward.png")

    def close(self, status):
        super().close(status)
        self.drawn["overview"] = Path("overview.png")

    def new_figures(self) -> Mapping[str, Path]:
        figures, self.drawn = self.drawn, {}
        return figures


class Fails(Recorder):
    """Raises in one call."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call

    def __getattribute__(self, name):
        if name == object.__getattribute__(self, "__dict__").get("call"):
            raise OSError("the service is away")
        return super().__getattribute__(name)


def report(loggers: Loggers, tmp_path: Path) -> None:
    loggers.setup(tmp_path, {}, 0)
    loggers.metrics(1, {})
    loggers.samples(1, [])


def test_figures_reach_the_others_whatever_the_order_also_the_last_ones(tmp_path):
    first, draws, last = Recorder(), Draws(), Recorder()
    loggers = Loggers([first, draws, last])
    report(loggers, tmp_path)
    loggers.close("finished")
    expected = [
        ("setup", 0), ("metrics", 1), ("figure", 1, "reward"), ("samples", 1), ("figure", 1, "overview"),
        ("close", "finished"),
    ]  # fmt: skip
    assert first.calls == last.calls == expected
    assert not any(call[0] == "figure" for call in draws.calls)


def test_nothing_arrives_at_a_logger_that_is_closed(tmp_path):
    members = [Draws(), Recorder(), Draws()]
    loggers = Loggers(members)
    report(loggers, tmp_path)
    loggers.close("finished")
    assert [member.calls[-1] for member in members] == [("close", "finished")] * 3
    loggers.metrics(2, {})
    assert [member.calls[-1] for member in members] == [("close", "finished")] * 3
    assert ("figure", 1, "overview") in members[2].calls, "what the first draws in its end reaches those still open"


@pytest.mark.parametrize("call", ["metrics", "samples"])
def test_a_failing_logger_is_named_and_the_others_get_the_step(tmp_path, call):
    before, fails, after = Recorder(), Fails(call), Recorder()
    loggers = Loggers([before, fails, after])
    report(loggers, tmp_path)
    with pytest.raises(LoggerError, match=rf"{call}\(\) of logger .*Fails .* raised OSError at step 1: the service"):
        loggers.check()
    loggers.metrics(2, {})
    loggers.close("failed")
    assert before.calls == after.calls
    assert ("metrics", 2) in after.calls
    assert ("metrics", 2) not in fails.calls
    assert fails.calls[-1] == ("close", "failed")


def test_a_logger_that_cannot_open_ends_the_start(tmp_path):
    after = Recorder()
    loggers = Loggers([Fails("setup"), after])
    with pytest.raises(LoggerError, match=r"setup\(\) of logger"):
        loggers.setup(tmp_path, {}, 0)
    assert after.calls == []


def test_all_are_told_to_hurry_before_they_close(tmp_path):
    told: list[str] = []

    class Hurries(Recorder):
        def hurry(self):
            told.append("hurry")

        def close(self, status):
            told.append(status)

    loggers = Loggers([Hurries(), Recorder(), Hurries()])
    report(loggers, tmp_path)
    loggers.hurry()
    loggers.close("interrupted")
    assert told == ["hurry", "hurry", "interrupted", "interrupted"]


def test_one_that_cannot_close_leaves_no_other_open(tmp_path):
    others = Recorder(), Recorder()
    loggers = Loggers([others[0], Fails("close"), others[1]])
    report(loggers, tmp_path)
    loggers.check()
    loggers.close("finished")
    assert [one.calls[-1] for one in others] == [("close", "finished")] * 2
    with pytest.raises(LoggerError, match=r"close\(\)"):
        loggers.check()


def test_an_interruption_leaves_one_that_closes_and_has_the_others_hurry(tmp_path, caplog):
    told: list[object] = []

    class Hurries(Recorder):
        def hurry(self):
            told.append(self)

    class Uploads(Recorder):
        def close(self, status):
            raise KeyboardInterrupt

    first, last = Hurries(), Hurries()
    loggers = Loggers([first, Uploads(), last])
    report(loggers, tmp_path)
    loggers.close("finished")
    loggers.check()
    assert told == [last]
    assert [one.calls[-1] for one in (first, last)] == [("close", "finished")] * 2
    assert "Uploads" in caplog.text


def test_one_that_was_told_to_hurry_is_not_waited_for(tmp_path, caplog):
    class Uploads(Recorder):
        def close(self, status):
            assert not threading.Event().wait(60)
            super().close(status)

    uploads, last = Uploads(), Recorder()
    loggers = Loggers([uploads, last], hurry_s=0.2)
    report(loggers, tmp_path)
    loggers.hurry()
    loggers.close("interrupted")
    loggers.check()
    assert [one.calls[-1] for one in (uploads, last)] == [("samples", 1), ("close", "interrupted")]
    assert re.search("logger .*Uploads.* did not close in time", caplog.text)
