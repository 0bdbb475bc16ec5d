"""Pictures: what is on them, when they are drawn, and that nobody sees half of one."""

from __future__ import annotations

import math
import subprocess
import sys
import threading

import matplotlib.image
import numpy as np
import psutil
import pytest
from child_processes import await_gone

from areal_lit.rollout.metrics import consumed_metrics
from areal_lit.testing import check_logger
from areal_lit.types import Example, Group, Prompt, Trajectory
from areal_lit_loggers.csv import Csv
from areal_lit_loggers.plots import Plots
from areal_lit_loggers.plots.figures import page_figure, smoothed
from areal_lit_loggers.plots.pages import OVERVIEW, pages

STEPS = list(range(1, 11))
VALUES = [step % 3 / 10 for step in STEPS]


def figure_of(curves, name, smoothing_steps=3.0):
    (page,) = [page for page in pages(curves) if page.name == name]
    return page_figure(page, curves, title="my run", smoothing_steps=smoothing_steps)


@pytest.mark.slow
def test_keeps_the_contract(tmp_path):
    check_logger(Plots, tmp_path)


def test_every_rollout_curve_is_of_a_metric_that_rollouts_report():
    mask, versions = np.array([False, True, True]), np.array([-1, 1, 2])
    prompt = Prompt(prompt_id=0, source="s", row=0, epoch=0, example=Example(prompt="p"))
    logprobs = np.array([0, -1, -2], dtype=np.float32)
    trajectory = Trajectory(
        token_ids=np.arange(3), loss_mask=mask, logprobs=logprobs, versions=versions, prompt=prompt, reward=1.0
    )
    groups = [Group(prompt=prompt, trajectories=(trajectory,) * 2)]
    reported = {metric.name: metric.value for metric in consumed_metrics(groups, 3, by_source=False)}
    assert {name for name in OVERVIEW if name.startswith("rollout/")} <= set(reported)
    assert (reported["rollout/tokens"], reported["rollout/prompt_tokens"]) == (4.0, 2.0)
    assert (reported["rollout/length"], reported["rollout/staleness"]) == (2.0, 1.5)
    assert (reported["rollout/staleness_median"], reported["rollout/staleness_p95"]) == (1.0, 2.0)
    assert reported["rollout/sampled_entropy"] == 1.5


def test_the_reward_picture_has_title_axes_and_both_lines():
    curves = {
        "rollout/reward": (STEPS, VALUES), "eval/sums/reward": ([1, 6], [0.25, 0.75]),
        "eval/sums/reward_ci95": ([6], [0.1]),
    }  # fmt: skip
    figure = figure_of(curves, "reward")
    (axes,) = figure.axes
    assert figure.texts[0].get_text() == "my run: reward"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("training step", "reward")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["training samples", "eval sums"]
    raw, smooth, evaluation = axes.get_lines()[:3]
    assert list(raw.get_ydata()) == VALUES
    assert list(smooth.get_ydata()) == smoothed(STEPS, VALUES, 3.0)
    assert list(evaluation.get_xdata()) == [1, 6]
    (bars,) = [bars for bars in axes.collections if len(bars.get_segments())]
    np.testing.assert_allclose(bars.get_segments(), [[[6, 0.65], [6, 0.85]]])
    assert axes.get_ylim() == (-0.02, 1.02)


@pytest.mark.parametrize("num_panels", [1, 3])
@pytest.mark.parametrize("size", [-3.6e-6, 1.25e-4, -123475.0, 1e9])
def test_labels_of_axes_lie_within_the_picture(num_panels: int, size: float) -> None:
    names = ["train/one", "train/two", "train/three"][:num_panels]
    (page,) = pages(names)
    curves = {name: ([0, 1, 2], [size, 1.1 * size, 1.2 * size]) for name in names}
    figure = page_figure(page, curves, title="my run", smoothing_steps=0)
    figure.draw_without_rendering()
    inches = [axes.yaxis.label.get_window_extent().x0 / figure.dpi for axes in figure.axes]
    assert min(inches) > 0.04


def test_rewards_beyond_one_are_all_in_view():
    (axes,) = figure_of({"rollout/reward": ([1, 2, 3], [-3.0, 7.0, 1.0])}, "reward").axes
    low, high = axes.get_ylim()
    assert low <= -3
    assert high >= 7


def test_one_outlier_does_not_flatten_a_curve():
    steps = list(range(100))
    (axes,) = figure_of({"mine/value": (steps, [1e6 if step == 50 else step % 7 for step in steps])}, "mine").axes
    assert axes.get_ylim()[1] < 100


def test_phases_are_stacked_up_to_the_whole():
    curves = {"time/train": ([1, 2], [2.0, 2.0]), "time/evaluate": ([2], [1.0]), "time/step": ([1, 2], [2.0, 3.0])}
    (axes,) = figure_of(curves, "time", smoothing_steps=0).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["train", "evaluate"]
    tops = [max(layer.get_paths()[0].vertices[:, 1]) for layer in axes.collections]
    assert tops == [2.0, 3.0]


def test_a_schedule_is_not_smoothed():
    (axes,) = figure_of({"train/lr": (STEPS, [step / 10 for step in STEPS])}, "train").axes
    assert len(axes.get_lines()) == 1


def test_smoothing_starts_at_the_curve_and_follows_a_constant():
    assert smoothed([5, 9], [2.0, 2.0], 10.0) == [2.0, 2.0]
    assert smoothed([0, 10], [0.0, 1.0], 10.0) == [0.0, pytest.approx(1 / (1 + math.exp(-1)))]


def fed(logger, directory, steps=STEPS, **more):
    logger.setup(directory, {}, 0)
    for step in steps:
        logger.metrics(step, {"rollout/reward": step / 20, "mine/own": float(step), **more})
    return logger


def test_pictures_are_whole_png_whenever_somebody_looks(tmp_path):
    plots, seen, is_over = tmp_path / "plots", set(), threading.Event()

    def look():
        while not is_over.wait(0.001):
            for path in plots.glob("*.png"):
                seen.add(matplotlib.image.imread(path).shape)

    reader = threading.Thread(target=look)
    reader.start()
    logger = fed(Plots(every_s=0), tmp_path)
    while not plots.exists() or len(list(plots.glob("*.png"))) < 2:
        is_over.wait(0.02)
    logger.close("finished")
    is_over.set()
    reader.join()
    assert seen
    assert sorted(path.name for path in plots.iterdir()) == ["mine.png", "reward.png"]


def test_what_was_drawn_is_told_to_the_other_loggers_once(tmp_path):
    logger = fed(Plots(every_s=1e9), tmp_path)
    assert logger.new_figures() == {}
    logger.close("finished")
    assert logger.new_figures() == {name: tmp_path / "plots" / f"{name}.png" for name in ("reward", "mine")}
    assert logger.new_figures() == {}


def test_after_a_resume_the_pictures_are_those_of_a_run_that_never_ended(tmp_path):
    resumed, whole = tmp_path / "resumed" / "run", tmp_path / "whole" / "run"
    for directory in (resumed, whole):
        directory.mkdir(parents=True)
    table = Csv()
    table.setup(resumed, {}, 0)
    for step in STEPS:
        table.metrics(step, {"rollout/reward": step / 10, "train/other": float("nan")})
    table.close("failed")
    for directory, start in ((resumed, 6), (whole, 0)):
        logger = Plots(every_s=1e9)
        logger.setup(directory, {}, start)
        for step in range(start + 1, 7):
            logger.metrics(step, {"rollout/reward": step / 10})
        logger.metrics(7, {"rollout/reward": 0.0})
        logger.close("finished")
    pictures = [{path.name: path.read_bytes() for path in each.glob("plots/*")} for each in (resumed, whole)]
    assert pictures[0] == pictures[1]
    assert list(pictures[0]) == ["reward.png"]


def test_an_evaluation_alone_gets_no_picture(tmp_path):
    logger = Plots()
    logger.setup(tmp_path, {}, 0)
    logger.metrics(400, {"eval/sums/reward": 0.9})
    logger.close("finished")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_drawn_before_its_time_and_never_in_this_process(tmp_path):
    script = (
        "import sys, pathlib, psutil; from areal_lit_loggers.plots import Plots\n"
        "logger = Plots(every_s=1e9); logger.setup(pathlib.Path(sys.argv[1]), {}, 0)\n"
        "logger.metrics(1, {'rollout/reward': 1.0}); assert not psutil.Process().children()\n"
        "logger.close('finished'); assert 'matplotlib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60)
    assert (tmp_path / "plots" / "reward.png").exists()


def test_drawing_that_fails_is_said_and_ends_nothing(tmp_path, caplog):
    (tmp_path / "plots").write_text("in the way")
    fed(Plots(every_s=1e9), tmp_path).close("finished")
    assert [record.message.split(" [")[0] for record in caplog.records] == [
        "plots are not up to date: drawing failed: FileExistsError:"
    ]


def test_drawing_becomes_rarer_the_dearer_it_is(tmp_path):
    before = set(psutil.Process().children())
    logger = fed(Plots(every_s=0), tmp_path, steps=STEPS[:1])
    (drawing,) = set(psutil.Process().children()) - before
    while drawing.is_running() and drawing.status() != psutil.STATUS_ZOMBIE:
        threading.Event().wait(0.02)
    logger.metrics(11, {"rollout/reward": 1.0})
    logger.metrics(12, {"rollout/reward": 1.0})
    assert set(psutil.Process().children()) <= before
    logger.close("finished")


def test_nothing_is_drawn_for_who_wants_the_run_to_end_at_once(tmp_path):
    logger, before = Plots(every_s=0), set(psutil.Process().children())
    logger.setup(tmp_path, {}, 0)
    logger.metrics(1, {"rollout/reward": 1.0})
    logger.metrics(2, {"rollout/reward": 1.0})
    assert set(psutil.Process().children()) > before
    logger.hurry()
    assert set(psutil.Process().children()) <= before
    logger.close("interrupted")
    assert logger.new_figures() == {}


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="must be >= 0"):
        Plots(every_s=-1)


def test_a_drawing_ends_with_the_run(tmp_path):
    script = (
        "import os, pathlib, psutil, signal, sys; from areal_lit_loggers.plots import Plots\n"
        "logger = Plots(every_s=0); logger.setup(pathlib.Path(sys.argv[1]), {}, 0)\n"
        "logger.metrics(1, {'rollout/reward': 1.0}); print(psutil.Process().children()[0].pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, timeout=60)
    assert await_gone([int(ran.stdout)]) == []
