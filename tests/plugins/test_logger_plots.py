"""Pictures: what is on them, when they are drawn, and that nothing is imported before."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from areal_lit.rollout.metrics import consumed_metrics
from areal_lit.testing import check_logger
from areal_lit.types import Example, Group, Prompt, Trajectory
from areal_lit_callbacks.progress import tokens_per_s
from areal_lit_loggers.csv import Csv
from areal_lit_loggers.plots import LABELS, Plots, overview_figure, reward_figure, smoothed

CURVE = [(step, step / 10) for step in range(1, 11)]


def test_keeps_the_contract(tmp_path):
    check_logger(Plots, tmp_path)


def test_every_rollout_curve_is_of_a_metric_that_rollouts_report():
    mask, versions = np.array([False, True, True]), np.array([-1, 1, 2])
    prompt = Prompt(prompt_id=0, source="s", row=0, epoch=0, example=Example(prompt="p"))
    trajectory = Trajectory(
        token_ids=np.arange(3), loss_mask=mask, logprobs=np.zeros(3, dtype=np.float32), versions=versions,
        prompt=prompt, reward=1.0,
    )  # fmt: skip
    groups = [Group(prompt=prompt, trajectories=(trajectory,) * 2)]
    reported = {metric.name: metric.value for metric in consumed_metrics(groups, 3, by_source=False)}
    assert {name for name in LABELS if name.startswith("rollout/")} <= set(reported)
    assert (reported["rollout/tokens"], reported["rollout/length"], reported["rollout/staleness"]) == (4.0, 2.0, 1.5)
    assert tokens_per_s({**reported, "time/step": 2.0}) == 2.0


def test_reward_picture_has_title_axes_and_both_lines():
    figure = reward_figure({"rollout/reward": CURVE, "eval/sums/reward": CURVE[::5]}, "my run", 3.0)
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "my run"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("training step", "reward")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["reward of training samples", "eval/sums"]
    raw, smooth, evaluation = axes.get_lines()
    assert list(raw.get_ydata()) == [value for _, value in CURVE]
    assert list(smooth.get_ydata()) == smoothed(CURVE, 3.0)
    assert list(evaluation.get_xdata()) == [1, 6]
    assert axes.get_ylim() == (-0.02, 1.02)


def test_rewards_beyond_one_are_all_in_view():
    (axes,) = reward_figure({"rollout/reward": [(1, -3.0), (2, 7.0), (3, 1.0)]}, "run", 3.0).axes
    low, high = axes.get_ylim()
    assert low <= -3
    assert high >= 7


def test_overview_has_a_picture_per_metric():
    figure = overview_figure({"rollout/length": CURVE, "train/own": CURVE[:2]}, "run", 3.0)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["completion length (tokens)", "train/own"]


def test_smoothing_starts_at_the_curve_and_follows_a_constant():
    assert smoothed([(5, 2.0), (9, 2.0)], 10.0) == [2.0, 2.0]
    steps_apart = smoothed([(0, 0.0), (10, 1.0)], 10.0)
    assert steps_apart == [0.0, pytest.approx(1 / (1 + math.exp(-1)))]


def test_pictures_are_png_and_leave_no_partial_file(tmp_path):
    logger = Plots(every_s=0)
    logger.setup(tmp_path, {}, 0)
    for step, value in CURVE:
        logger.metrics(step, {"rollout/reward": value, "rollout/length": 3.0, "rollout/unknown": 1.0})
    logger.close("finished")
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == ["overview.png", "reward.png"]
    assert (tmp_path / "plots" / "reward.png").read_bytes().startswith(b"\x89PNG")


def test_after_a_resume_the_curve_goes_on(tmp_path):
    table = Csv()
    table.setup(tmp_path, {}, 0)
    for step, value in CURVE:
        table.metrics(step, {"rollout/reward": value, "train/other": 1})
    table.close("failed")
    logger = Plots(every_s=1e9)
    logger.setup(tmp_path, {}, 6)
    logger.metrics(7, {"rollout/reward": 0.0})
    assert logger._curves == {"rollout/reward": {**dict(CURVE[:6]), 7: 0.0}}
    logger.close("finished")
    assert (tmp_path / "plots" / "reward.png").exists()


def test_a_run_without_rewards_gets_an_overview_only(tmp_path):
    logger = Plots()
    logger.setup(tmp_path, {}, 0)
    logger.metrics(1, {"train/loss": float("nan")})
    logger.metrics(2, {"train/loss": 0.5})
    logger.close("finished")
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["overview.png"]


def test_an_evaluation_alone_gets_no_picture(tmp_path):
    logger = Plots()
    logger.setup(tmp_path, {}, 0)
    logger.metrics(400, {"eval/sums/reward": 0.9})
    logger.close("finished")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_drawn_or_imported_before_its_time(tmp_path):
    script = (
        "import sys, pathlib; from areal_lit_loggers.plots import Plots\n"
        "logger = Plots(every_s=1e9); logger.setup(pathlib.Path(sys.argv[1]), {}, 0)\n"
        "logger.metrics(1, {'rollout/reward': 1.0}); assert 'matplotlib' not in sys.modules\n"
        "logger.close('finished'); assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60)
    assert (tmp_path / "plots" / "reward.png").exists()


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="must be >= 0"):
        Plots(every_s=-1)
