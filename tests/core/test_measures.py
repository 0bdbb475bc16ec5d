"""What metrics are counted in, and which way is better."""

from __future__ import annotations

import pytest

from areal_lit.measures import measure_of


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("rollout/reward", "reward"),
        ("rollout/reward/format", "reward"),
        ("train/clip_low", "share"),
        ("eval/sums/pass@1", "share"),
        ("rollout/prompt_tokens", "tokens"),
        ("sync/pause_seconds", "seconds"),
        ("train/kl_reference", "nats"),
        ("train/grad_norm", "grad norm"),
        ("train/advantage_mean", "advantage"),
        ("train/reward_raw_max", "reward"),
        ("train/kl_proximal", "nats"),
        ("train/ratio_off_policy_max", "ratio"),
        ("critic/value_error", "reward², halved"),
        ("mine/kl_own", "nats"),
        ("mine/own", "own"),
    ],
)
def test_what_is_counted(metric: str, unit: str) -> None:
    assert measure_of(metric).unit == unit


@pytest.mark.parametrize(
    ("metric", "title"),
    [
        ("rollout/reward", "reward"),
        ("rollout/reward/format", "reward part format"),
        ("rollout/reward/format_std", "reward part format, deviation"),
        ("rollout/long_sums/reward", "reward, long sums"),
        ("train/advantage_mean", "advantage, mean"),
        ("eval/sums/pass@4", "pass@4 on sums"),
        ("train/proximal_gap_loglinear", "proximal policy, loglinear against recomputed"),
        ("critic/loss", "loss, critic"),
        ("mine/own_thing", "mine/own_thing"),
        ("mine/{0}/own_loss", "mine/{0}/own_loss"),
    ],
)
def test_what_it_is_called(metric: str, title: str) -> None:
    assert measure_of(metric).title == title


@pytest.mark.parametrize(
    ("best", "metrics"),
    [
        (max, ["rollout/reward", "rollout/sums/reward", "eval/sums/reward", "eval/sums/pass@4"]),
        (min, ["train/loss", "time/step", "sync/pause_seconds", "reward/unscored", "train/logprob_mismatch_max"]),
        (None, ["rollout/staleness", "rollout/length", "train/kl_reference", "train/lr", "train/entropy", "mine/own"]),
    ],
)
def test_only_where_one_way_is_better_there_is_a_best(best: object, metrics: list[str]) -> None:
    assert {name: measure_of(name).best for name in metrics} == dict.fromkeys(metrics, best)
