"""Progress: a live picture that fits its terminal, plain lines elsewhere, and never in the way."""

from __future__ import annotations

from io import StringIO
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from areal_lit.testing import check_callback
from areal_lit_callbacks.progress import Progress, clock, sparkline, tokens_per_s

METRICS = {
    "rollout/reward": 0.5,
    "rollout/staleness": 1.25,
    "rollout/length": 6.5,
    "rollout/tokens": 5000.0,
    "time/step": 0.5,
    "time/wait_batch": 0.125,
    "time/train": 0.25,
    "time/checkpoint": 0.0,
}


class Screen(Progress):
    """Writes into a string."""

    def __init__(self, *, is_terminal, width=80, every_s=0.0):
        super().__init__(every_s=every_s)
        self.is_terminal = is_terminal
        self.width = width
        self.out = StringIO()

    def console(self):
        return Console(file=self.out, width=self.width, force_terminal=self.is_terminal, color_system=None)

    def lines(self):
        """The picture as it would be drawn now."""
        console = Console(file=StringIO(), width=self.width, color_system=None)
        console.print(self.picture())
        return console.file.getvalue().splitlines()


def trainer(step=0, max_steps=200):
    algorithm = SimpleNamespace(offline=False)
    return SimpleNamespace(
        name="quickstart", step=step, max_steps=max_steps, algorithm=algorithm,
        policy="a role", critic=None, reference="a role", teacher=None,
    )  # fmt: skip


def test_keeps_the_contract(tmp_path, capsys):
    check_callback(Progress, tmp_path, trainer=trainer(max_steps=2))
    assert "quickstart: finished at step 2" in capsys.readouterr().out


@pytest.fixture
def live():
    screens = []

    def start(**arguments):
        screen = Screen(is_terminal=True, width=arguments.pop("width", 80))
        screens.append(screen)
        screen.fit_start(trainer(**arguments))
        return screen

    yield start
    for screen in screens:
        screen.fit_end("finished")


def test_the_picture_tells_the_step_and_what_it_waits_for(live):
    screen = live()
    screen.step_end(50, METRICS)
    screen.evaluate_end(50, {"eval/sums/reward": 0.75, "eval/sums/length": 3.0})
    with screen.phase("wait_batch"):
        text = "\n".join(screen.lines())
    for part in (
        "quickstart", "step 50/200", " 25%", "left", "reward     0.500", "stale 1.2", "length 6.5",
        "10,000 tok/s", "sums/reward 0.750 (step 50)", "wait 0.12  train 0.25  of 0.50", "waiting for rollouts",
    ):  # fmt: skip
        assert part in text
    assert "waiting" not in "\n".join(screen.lines())


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(live, width):
    screen = live(width=width, max_steps=100_000)
    for step in range(1, 300):
        screen.step_end(step, {**METRICS, "rollout/reward": step % 7 / 7, "rollout/length": 1e6})
    screen.evaluate_end(299, {f"eval/{'x' * 30}{index}/reward": 0.5 for index in range(5)})
    lines = screen.lines()
    assert len(lines) == 6
    assert max(map(len, lines)) <= width


def test_at_80_columns_nothing_is_cut(live):
    screen = live()
    screen.step_end(199, {**METRICS, **{f"time/{name}": 12.34 for name in ("prepare", "sync_weights", "evaluate")}})
    assert "…" not in "\n".join(screen.lines())


def test_an_offline_run_shows_its_loss(live):
    screen = live()
    screen.step_end(1, {"train/loss": 0.25, "data/tokens": 100.0, "time/step": 2.0})
    text = "\n".join(screen.lines())
    assert "loss       0.250" in text
    assert "50 tok/s" in text


@pytest.mark.parametrize("max_steps", [None, 200])
def test_absent_and_odd_metrics_do_no_harm(live, max_steps):
    screen = live(max_steps=max_steps)
    screen.lines()
    for metrics in ({}, {"rollout/reward": float("nan")}, {"time/step": 0.0, "rollout/tokens": 0.0}):
        screen.step_end(1, metrics)
        screen.lines()


def test_plain_lines_without_a_terminal():
    screen = Screen(is_terminal=False)
    screen.fit_start(trainer())
    screen.step_end(1, METRICS)
    screen.step_end(2, METRICS)
    screen.evaluate_end(2, {"eval/sums/pass@1": 0.75})
    screen.fit_end("finished")
    start, first, second, evaluation, end = screen.out.getvalue().splitlines()
    assert start == "quickstart: from step 0 of 200"
    assert first.startswith("step 1/200  reward 0.500  stale 1.2  length 6.5  10,000 tok/s")
    assert second.startswith("step 2/200")
    assert evaluation == "evaluation sums/pass@1 0.750 (step 2)"
    assert end.startswith("quickstart: finished at step 2 after 0:00:0")
    assert max(map(len, (first, second))) <= 76
    assert "\x1b" not in screen.out.getvalue()


def test_the_start_is_told_at_once_and_a_failed_or_interrupted_one_no_more():
    screen = Screen(is_terminal=False)
    screen.configure(trainer())
    screen.fit_end("failed")
    screen.fit_start(trainer())
    screen.fit_end("interrupted")
    assert screen.out.getvalue().splitlines() == [
        "quickstart: starting policy, reference, engine, rewards",
        "quickstart: from step 0 of 200",
    ]
    terminal = Screen(is_terminal=True)
    terminal.configure(trainer())
    assert terminal.out.getvalue() == ""


def test_plain_lines_come_at_their_rate_with_the_first_and_the_last():
    screen = Screen(is_terminal=False, every_s=1e9)
    screen.fit_start(trainer(step=10))
    for step in range(11, 200):
        screen.step_end(step, METRICS)
    screen.fit_end("failed")
    lines = screen.out.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines[1:-1]] == ["step 11/200", "step 199/200"]
    assert "failed at step 199" in lines[-1]


def test_metric_names_are_not_markup():
    screen = Screen(is_terminal=False)
    screen.fit_start(trainer())
    screen.evaluate_end(0, {"eval/[bold]:smile:/reward": 1.0})
    assert "[bold]:smile:/reward 1.000" in screen.out.getvalue()


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), width=st.integers(1, 80))
def test_sparkline_fits_and_shows_the_order(values, width):
    line = sparkline(values, width)
    assert len(line) == min(width, len(values))
    if len(values) <= width and max(values) > min(values):
        assert line[values.index(max(values))] == "█"
        assert line[values.index(min(values))] == "▁"


def test_clock_and_speed():
    assert clock(3723.4) == "1:02:03"
    assert tokens_per_s({"rollout/tokens": 7.0, "time/step": 2.0}) == 3.5
    assert tokens_per_s({"time/step": 1.0}) is None


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="refresh_per_s > 0"):
        Progress(refresh_per_s=0)
