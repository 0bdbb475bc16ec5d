"""Numbers for people: short, of bounded width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_lit_callbacks.progress.concerns import concerns
from areal_lit_callbacks.progress.words import amount, clock, evaluation_parts, fitting, span, sparkline


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), width=st.integers(1, 80))
def test_sparkline_fits_and_shows_the_order(values, width):
    line = sparkline(values, width)
    assert len(line) == min(width, len(values))
    if len(values) <= width and max(values) > min(values):
        assert line[values.index(max(values))] == "█"
        assert line[values.index(min(values))] == "▁"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 ms"), (0.0756, "76 ms"), (0.9996, "1.00 s"), (9.994, "9.99 s"), (9.996, "10.0 s"), (99.96, "100 s")],
)
def test_a_duration_has_three_digits(seconds, text):
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (9_999, "9,999"), (10_000, "10.0k"), (123_456, "123k"), (1_234_567, "1.23M"), (2e9, "2.00G")],
)
def test_an_amount_is_short(count, text):
    assert amount(count) == text


@given(st.floats(0, 1e14))
def test_no_amount_takes_more_than_six_characters(count):
    assert len(amount(count)) <= 6


def test_parts_are_left_out_whole():
    assert fitting(["stale 2.0", "length 6.5", "more"], 21) == "stale 2.0  length 6.5"
    assert fitting(["stale 2.0", "length 6.5"], 20) == "stale 2.0"
    assert fitting(["stale 2.0"], 3) == "stale 2.0"


def test_clock():
    assert clock(3723.4) == "1:02:03"


def test_every_evaluation_set_has_its_line():
    metrics = {
        "eval/sums/reward": 0.75, "eval/sums/reward_ci95": 0.021, "eval/sums/pass@1": 0.7, "eval/sums/pass@4": 0.9,
        "eval/sums/unscored": 0.0, "eval/sums/length": 3.25, "eval/a/b/loss": 1.5, "eval/a/b/unscored": 2.0,
        "eval/pairs/loss": 0.5, "eval/pairs/pair_accuracy": 0.875, "eval/pairs/reward_chosen": 3.0,
    }  # fmt: skip
    assert evaluation_parts(40, metrics) == [
        ["evaluation  step 40", "a/b", "loss 1.500", "unscored 2"],
        ["evaluation  step 40", "pairs", "loss 0.500", "pair_accuracy 0.875"],
        ["evaluation  step 40", "sums", "reward 0.750 ±0.021", "pass@1 0.700", "pass@4 0.900", "length 3.2"],
    ]


@pytest.mark.parametrize(
    ("metric", "value", "fine", "sentence"),
    [
        ("rollout/equal_rewards", 1.0, 0.9, "all groups have equal rewards"),
        ("reward/unscored", 3.0, 0.0, "3 rewards could not be scored"),
        ("rollout/unscored", 2.0, 0.0, "2 rewards could not be scored"),
        ("train/logprob_mismatch", 2e-3, 1e-3, "disagree by 0.002"),
        ("sync/probe_difference", float("nan"), 0.0, "disagree by nan"),
        ("rollout/failure_budget_used", 0.5, 0.49, "50% of the failure budget"),
        ("train/skipped_steps", 1.0, 0.0, "1 optimizer steps were skipped"),
        ("rollout/truncated", 1.0, 0.99, "every completion ends at max_new_tokens"),
        ("train/tokens", 0.0, 1.0, "no token is trained on"),
        ("train/grad_norm", 0.0, 1e-9, "the gradient is 0"),
    ],
)
def test_what_is_off_is_said_and_nothing_else(metric, value, fine, sentence):
    (found,) = concerns({metric: value}, warn_above=1e-3).values()
    assert sentence in found
    assert concerns({metric: fine}, warn_above=1e-3) == {}


@pytest.mark.parametrize("teaching", ["train/teacher_divergence", "train/advantage_std"])
def test_equal_rewards_do_not_matter_to_who_learns_from_something_else(teaching: str) -> None:
    assert concerns({"rollout/equal_rewards": 1.0, teaching: 0.1}, warn_above=1e-3) == {}
    assert concerns({"rollout/equal_rewards": 1.0, "train/advantage_std": 0.0}, warn_above=1e-3).keys() == {"equal"}
