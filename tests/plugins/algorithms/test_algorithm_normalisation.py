"""Centring and scaling by hand-computed numbers and against a brute force."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch
from algorithm_batches import make_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_lit.token_batch import TokenBatch
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.diagnostics import count_groups
from areal_lit_algorithms.pieces.normalisation import Normaliser


def batch(groups: list[int], rewards: list[float | None], masks: list[list[int]] | None = None) -> TokenBatch:
    return make_batch(GRPO(), groups, rewards, masks)


def advantages(groups: list[int], rewards: list[float | None], **settings: object) -> list[float]:
    made = batch(groups, rewards)
    return Normaliser(**settings).samples(made["reward"], made).tolist()  # type: ignore[arg-type]


def test_group_mean_and_std() -> None:
    result = advantages([5, 5, 5, 2, 2], [1.0, 2.0, 3.0, 0.0, 4.0], eps=0.0)
    assert result == pytest.approx([-1.0, 0.0, 1.0, -math.sqrt(0.5), math.sqrt(0.5)])
    biased = advantages([5, 5, 5], [1.0, 2.0, 3.0], eps=0.0, unbiased_std=False)
    assert biased == pytest.approx([-math.sqrt(1.5), 0.0, math.sqrt(1.5)])


def test_groups_are_known_by_id_not_by_place() -> None:
    assert advantages([1, 2, 1, 2], [0.0, 5.0, 2.0, 7.0], std_level="none") == [-1.0, -1.0, 1.0, 1.0]


def test_three_rewards_in_groups_of_two_stay_small() -> None:
    assert advantages([1, 1, 2], [1.0, 2.0, 3.0]) == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5), 0.0], abs=1e-5)


def test_equal_rewards_give_exactly_nothing() -> None:
    assert advantages([1] * 7, [0.1] * 7, eps=0.0 + 1e-12) == [0.0] * 7


@pytest.mark.parametrize("eps", [0.0, 1e-12])
def test_equal_values_get_nothing_whatever_their_mean_rounds_to(eps: float) -> None:
    x = torch.tensor([26929.843437734868] * 3 + [0.0, 1.0], dtype=torch.float64)
    groups, valid = torch.tensor([1, 1, 1, 2, 2]), torch.ones(5, dtype=torch.bool)
    result = Normaliser(mean_level="batch", eps=eps)(x, groups, valid)
    assert result[:3].tolist() == [0.0] * 3
    assert result[3:].tolist() == pytest.approx([float(r - x.mean()) / math.sqrt(0.5) for r in (0.0, 1.0)])


@pytest.mark.parametrize(("mean", "std"), [("group", "group"), ("batch", "group"), ("batch", "batch")])
def test_what_is_no_number_stays_none_and_is_not_taken_for_equal(mean: Any, std: Any) -> None:
    x = torch.tensor([1.0, math.nan, 0.0, 1.0])
    result = Normaliser(mean_level=mean, std_level=std)(x, torch.tensor([1, 1, 2, 2]), torch.ones(4, dtype=torch.bool))
    assert math.isnan(result[1])


LEVELS = [
    (mean, std)
    for mean in ("group", "batch", "none")
    for std in ("group", "batch", "none", "group_rms", "batch_rms")
    if mean != "none" or std not in ("group", "batch")
]


@pytest.mark.parametrize(("mean", "std"), LEVELS)
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_rewards_of_0_and_1_stay_small_in_groups_of_any_size(mean: str, std: str, eps: float) -> None:
    """Groups of equal rewards, of one sample, with an unscored one, and of all zeros among them."""
    groups = [1, 1, 2, 2, 3, 4, 4, 5, 5]
    rewards: list[float | None] = [1.0, 1.0, 0.0, 1.0, 1.0, 1.0, None, 0.0, 0.0]
    result = advantages(groups, rewards, mean_level=mean, std_level=std, eps=eps)
    assert all(math.isfinite(a) for a in result)
    assert max(map(abs, result)) <= 3
    if std == "group":
        taught = [a for group, a in zip(groups, result, strict=True) if group != 2]
        assert taught == [0.0] * 7


def test_batch_levels() -> None:
    rewards: list[float | None] = [1.0, 3.0, 5.0, 11.0]
    assert advantages([1, 1, 2, 2], rewards, mean_level="batch", std_level="none") == [-4.0, -2.0, 0.0, 6.0]
    std = statistics.stdev([1.0, 3.0, 5.0, 11.0])
    mixed = advantages([1, 1, 2, 2], rewards, std_level="batch", eps=0.0)
    assert mixed == pytest.approx([-1 / std, 1 / std, -3 / std, 3 / std])


def test_leave_one_out_centres_on_the_others_and_stays_bounded() -> None:
    assert advantages([1, 1, 1], [0.0, 3.0, 6.0], leave_one_out=True, std_level="none") == [-4.5, 0.0, 4.5]
    one_differs = advantages([1] * 8, [0.95] * 7 + [0.0], leave_one_out=True)
    assert max(map(abs, one_differs)) < 4


def test_no_mean_with_a_std_must_be_asked_for_by_name() -> None:
    with pytest.raises(ValueError, match="say 'group_rms' if that is meant"):
        advantages([1, 1], [3.0, 4.0], mean_level="none")
    rms = math.sqrt(12.5)
    result = advantages([1, 1], [3.0, 4.0], mean_level="none", std_level="group_rms", eps=0.0)
    assert result == pytest.approx([3 / rms, 4 / rms])


def test_who_may_not_vote_gets_nothing_and_changes_nothing() -> None:
    made = batch([1, 1, 1, 1], [1.0, None, 3.0, 100.0], [[1], [1], [1], [0]])
    assert Normaliser(std_level="none").samples(made["reward"], made).tolist() == [-1.0, 0.0, 1.0, 0.0]


def test_groups_that_teach_nothing_are_counted() -> None:
    rewards = [1.0, 1.0, 0.0, 1.0, 5.0, None, None, None, 0.0, 0.0, 7.0, 7.0, 2.0, None, 3.0, 4.0]
    made = batch([i // 2 for i in range(16)], rewards)
    counts = count_groups(made["reward"], made)
    assert (counts.groups, counts.zero_variance, counts.single, counts.empty) == (8, 3, 2, 1)
    shares = {"zero_variance_groups": 3 / 8, "single_groups": 2 / 8, "empty_groups": 1 / 8}
    assert {m.name: m.value for m in counts.metrics()} == {f"train/{name}": share for name, share in shares.items()}


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(-100, 100, width=32), st.booleans()), min_size=1, max_size=24))
@settings(max_examples=60)
def test_against_brute_force(rows: list[tuple[int, float, bool]]) -> None:
    groups = [g for g, _, _ in rows]
    rewards = [r if scored else None for _, r, scored in rows]
    expected = []
    for group, reward in zip(groups, rewards, strict=True):
        peers = [r for g, r in zip(groups, rewards, strict=True) if g == group and r is not None]
        if reward is None or len(set(peers)) < 2:
            expected.append(0.0)
        else:
            expected.append((reward - statistics.fmean(peers)) / (statistics.stdev(peers) + 1e-6))
    assert advantages(groups, rewards) == pytest.approx(expected, rel=1e-5, abs=1e-5)
