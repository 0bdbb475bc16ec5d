"""Progress: what the picture and the plain lines say, at any width."""

from __future__ import annotations

import re
import sys
import threading
from io import StringIO

import pytest
from course_cases import METRICS, stand_in_trainer
from rich.console import Console

from areal_lit.testing import check_callback
from areal_lit_callbacks.progress import Progress
from areal_lit_callbacks.progress.course import Course
from areal_lit_callbacks.progress.lines import Lines
from areal_lit_callbacks.progress.picture import picture
from areal_lit_callbacks.progress.summary import summary


def course_of(trainer, *steps):
    course = Course(trainer)
    course.begin(trainer.step)
    for step, metrics in enumerate(steps, start=trainer.step + 1):
        course.take(step, metrics)
    return course


def lines_of(course, width=80):
    return [line.plain for line in picture(course, width)]


class Plain(Progress):
    """Writes lines into a string."""

    def __init__(self, *, every_s=0.0):
        super().__init__(every_s=every_s)
        self.out = StringIO()

    def screen(self, course):
        return Lines(course, Console(file=self.out, width=80), every_s=self.every_s)

    def text(self):
        return self.out.getvalue().splitlines()


@pytest.fixture
def plain():
    started = []

    def start(**arguments):
        shown = Plain(every_s=arguments.pop("every_s", 0.0))
        shown.configure(stand_in_trainer(**arguments))
        started.append(shown)
        shown.fit_start(stand_in_trainer(**arguments))
        return shown

    yield start
    for shown in started:
        shown.fit_end("finished")


def test_keeps_the_contract(tmp_path, capsys):
    check_callback(Progress, tmp_path, trainer=stand_in_trainer(max_steps=2))
    assert "quickstart: finished at step 2 of 2" in capsys.readouterr().out


def test_the_picture_tells_everything_in_eighty_columns():
    trainer = stand_in_trainer()
    course = course_of(trainer, *[METRICS] * 49, {**METRICS, "rollout/equal_rewards": 1.0})
    with course.during("wait_batch"), trainer.activity.during(lambda: "waiting for 3 of 16 groups"):
        text = "\n".join(lines_of(course))
    for part in (
        "quickstart  step 50/200", " 25%", "left", "reward     0.500", "best 0.500", "stale 1.2 (max 2)", "length 6.5",
        "truncated 2%", "in 40.0k  out 10.0k", "500 ms  wait 25%  train 50%", "warning    all groups have equal",
        "now        waiting for 3 of 16 groups",
    ):  # fmt: skip
        assert part in text
    assert "waiting" not in "\n".join(lines_of(course))
    assert "running" in lines_of(course)[-1]


def test_what_is_waited_for_comes_from_whoever_waits():
    trainer = stand_in_trainer()
    course = Course(trainer)
    assert course.doing() == "starting"
    with trainer.activity.during("reading the data"):
        assert course.doing() == "starting: reading the data"
    course.begin(0)
    with course.during("train"), trainer.activity.during("an optimizer step of the policy"):
        assert course.doing() == "training: an optimizer step of the policy"


@pytest.mark.parametrize("width", [12, 30, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width):
    trainer = stand_in_trainer(max_steps=100_000)
    steps = [{**METRICS, "rollout/reward": step % 7 / 7, "rollout/length": 1e6} for step in range(300)]
    course = course_of(trainer, *steps, {**steps[-1], "rollout/equal_rewards": 1.0, "reward/unscored": 123456.0})
    with trainer.activity.during("waiting for something of a very long name " * 5):
        lines = lines_of(course, width)
    assert len(lines) == 7
    assert max(map(len, lines)) <= width


def test_at_eighty_columns_nothing_is_cut():
    phases = {
        f"time/{name}": 15.0 for name in ("wait_batch", "prepare", "train", "sync_weights", "evaluate", "checkpoint")
    }
    course = course_of(stand_in_trainer(), {**METRICS, "time/step": 90.0, **phases})
    text = "\n".join(lines_of(course))
    assert "90.0 s  wait 17%  prep 17%  train 17%  sync 17%  eval 17%  save 17%" in text
    assert "…" not in text


@pytest.fixture
def threads_that_alternate():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("threads_that_alternate")
def test_a_picture_may_be_drawn_at_any_time():
    course, drawn, step = course_of(stand_in_trainer(), *[METRICS] * 20), [], 20
    drawer = threading.Thread(target=lambda: drawn.extend(lines_of(course, 20) for _ in range(3000)))
    drawer.start()
    while drawer.is_alive():
        step += 1
        course.take(step, METRICS)
    drawer.join()
    assert len(drawn) == 3000
    assert all(lines[-1].startswith("now        running") for lines in drawn)


def test_an_offline_run_shows_its_loss():
    metrics = {"train/loss": 0.25, "data/tokens": 100.0, "time/step": 2.0}
    text = "\n".join(lines_of(course_of(stand_in_trainer(), {**metrics, "train/loss": 0.5}, metrics)))
    assert "loss       0.250" in text
    assert "best 0.250" in text
    assert "tokens/s   50" in text


@pytest.mark.parametrize("max_steps", [None, 200])
@pytest.mark.parametrize("metrics", [{}, {"rollout/reward": float("nan")}, {"time/step": 0.0, "rollout/tokens": 0.0}])
def test_absent_and_odd_metrics_do_no_harm(max_steps, metrics):
    course = course_of(stand_in_trainer(max_steps=max_steps), metrics)
    assert lines_of(course)[-1].startswith("now")
    assert summary(course, "finished")


def test_a_requested_end_is_said():
    trainer = stand_in_trainer()
    trainer.activity.is_ending = True
    assert "ends after this step" in "\n".join(lines_of(course_of(trainer)))


def test_plain_lines_without_a_terminal(plain):
    shown = plain()
    shown.step_end(1, METRICS)
    shown.step_end(2, METRICS)
    shown.evaluate_end(2, {"eval/sums/pass@1": 0.75})
    with shown.phase("checkpoint"):
        pass
    shown.fit_end("failed")
    starting, start, first, second, evaluation, checkpoint, end, *_ = shown.text()
    assert starting == "quickstart: starting policy, reference, engine, rewards"
    assert start == "quickstart: from step 0 of 200"
    assert first.startswith(
        "step 1/200  reward 0.500  stale 1.2 (max 2)  length 6.5  truncated 2%  in 40.0k tok/s  out"
    )
    assert second.startswith("step 2/200")
    assert evaluation == "evaluation  step 2  sums  pass@1 0.750"
    assert re.fullmatch(r"checkpoint  step 2  training waited [\d.]+ m?s", checkpoint)
    assert re.match(r"quickstart: failed at step 2 of 200 after 0:\d\d:\d\d", end)
    assert "\x1b" not in shown.out.getvalue()


def test_a_start_that_fails_is_told_by_the_error_alone():
    shown = Plain()
    shown.configure(stand_in_trainer())
    shown.fit_end("failed")
    assert shown.text() == ["quickstart: starting policy, reference, engine, rewards"]


def test_plain_lines_come_at_their_rate_with_the_first_and_the_last(plain):
    shown = plain(step=10, every_s=1e6)
    for step in range(11, 200):
        shown.step_end(step, METRICS)
    shown.fit_end("failed")
    steps = [line.split("  ")[0] for line in shown.text() if line.startswith("step")]
    assert steps == ["step 11/200", "step 199/200"]


def test_a_concern_is_told_when_it_begins_and_not_at_every_step(plain):
    shown = plain(every_s=1e6)
    for step, unscored in enumerate((0.0, 3.0, 4.0, 0.0, 5.0), start=1):
        shown.step_end(step, {**METRICS, "reward/unscored": unscored})
    warnings = [line for line in shown.text() if line.startswith("warning")]
    assert warnings == ["warning at step 2: 3 rewards could not be scored"]


def test_a_long_silence_is_explained(plain):
    shown = plain(every_s=0.02)
    shown.step_end(1, METRICS)
    with shown.phase("train"):
        for _ in range(5000):
            if "step 1/200: training" in shown.text():
                return
            threading.Event().wait(0.01)
    raise AssertionError(shown.text())


def test_metric_names_are_not_markup(plain):
    shown = plain()
    shown.evaluate_end(0, {"eval/[bold]:smile:/reward": 1.0})
    assert "[bold]:smile:  reward 1.000" in shown.out.getvalue()


@pytest.mark.parametrize(
    ("status", "config", "expected"),
    [
        ("finished", {}, "areal-lit samples {run}"),
        ("interrupted", {"name": "x"}, "areal-lit fit --config {run}/config.yaml --resume auto"),
        ("failed", {}, 'trainer.fit(resume="auto")'),
    ],
)
def test_the_summary_says_where_everything_is_and_what_to_type_next(tmp_path, status, config, expected):
    trainer = stand_in_trainer(runs_dir=tmp_path, config=config)
    run = tmp_path / "quickstart"
    (run / "checkpoints" / "step-00000002").mkdir(parents=True)
    course = course_of(trainer, {**METRICS, "rollout/reward": 0.25}, METRICS)
    head, *rows = summary(course, status)
    assert re.match(rf"quickstart: {status} at step 2 of 200 after 0:\d\d:\d\d", head)
    assert [row.split(maxsplit=1) for row in rows] == [
        ["reward", "0.250 first, 0.500 last"],
        ["tokens", "10.0k generated, 40.0k of prompts"],
        ["run", f"{run}  (metrics.csv, samples.jsonl, plots/)"],
        ["log", str(run / "logs" / "controller.log")],
        ["next", expected.format(run=run)],
    ]


@pytest.mark.parametrize(("num_steps", "first", "last"), [(2, 0, 1), (9, 0, 8), (10, 0.5, 8.5), (100, 4.5, 94.5)])
def test_the_first_and_the_last_steps_of_a_summary_are_never_the_same(num_steps, first, last):
    course = course_of(stand_in_trainer(), *({**METRICS, "rollout/reward": float(step)} for step in range(num_steps)))
    assert f"{first:.3f} first, {last:.3f} last" in "\n".join(summary(course, "finished"))


def test_a_single_step_has_no_first_and_last():
    assert "first" not in "\n".join(summary(course_of(stand_in_trainer(), METRICS), "finished"))


def test_without_a_checkpoint_there_is_nothing_to_go_on_with(tmp_path):
    course = course_of(stand_in_trainer(runs_dir=tmp_path), METRICS)
    assert not any("next" in line for line in summary(course, "failed"))


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="refresh_per_s > 0"):
        Progress(refresh_per_s=0)
