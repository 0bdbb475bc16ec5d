"""Where AReaL differs on the golden cases: the closed form of what it does, and the one that ours meets."""

from __future__ import annotations

import math
from typing import Any

import golden_file
import numpy as np
import pytest
import torch
from oracle_batches import (
    assert_number,
    assert_step,
    assert_tokens,
    assert_values,
    packed,
    take_step,
    to_padded,
    weight_of,
)
from ragged_cases import Case, Floats, cases

from areal_lit_algorithms.gspo import GSPO
from areal_lit_algorithms.m2po import M2PO
from areal_lit_algorithms.pieces.kl import kl_reward
from areal_lit_algorithms.pieces.normalisation import Normaliser
from areal_lit_algorithms.pieces.rejection import Rejection
from areal_lit_algorithms.pieces.shaping import Overlong
from areal_lit_algorithms.reinforce_pp import ReinforcePP
from areal_lit_algorithms.rloo import RLOO

ALGORITHMS = golden_file.read("areal_algorithms")
PIECES = golden_file.read("areal_pieces")
OUTCOMES = [case.without_turn_rewards for case in cases()]
STRIDE = 3


def test_areal_takes_the_deviation_from_the_means_of_the_others() -> None:
    """Ours: that from the whole set's mean, so that leaving one out shows; AReaL's quotient is that without."""
    norm = Normaliser(mean_level="batch", std_level="batch", leave_one_out=True)
    for case in OUTCOMES:
        batch = packed(case.index)
        x, n = case.value, case.mask.sum()
        others = (x - x[case.mask].mean()) * n / (n - 1)
        theirs = others / (np.sqrt(np.square(others[case.mask]).sum() / (n - 1)) + 1e-6)
        assert_tokens(theirs, case, PIECES, "norm/batch_batch_true/value")
        ours = to_padded(case, norm.tokens(batch["value"].double(), batch))
        assert ours[case.mask] == pytest.approx((others / (x[case.mask].std(ddof=1) + 1e-6))[case.mask], rel=1e-6)


def test_areal_selects_from_all_splits_equal_second_moments_and_divides_by_what_is_kept() -> None:
    """Ours drops tokens of equal moment together, and divides by all loss tokens: AReaL's loss times the share kept."""
    tied = 0
    for case in OUTCOMES:
        moments = np.sort(np.square(case.proximal - case.behaviour)[case.mask])
        num_kept = int((moments.cumsum() / np.arange(1, len(moments) + 1) < 0.04).sum())
        if 0 < num_kept < len(moments) and moments[num_kept - 1] == moments[num_kept]:
            tied += 1
            continue
        assert_step(take_step(M2PO(among="all"), case), case, ALGORITHMS, "m2po")
    assert tied < 10


def strided(x: Floats, *, std: str) -> Floats:
    """The closed form of AReaL's: runs of three; the rest has mean and deviation 0."""
    whole = x[: len(x) // STRIDE * STRIDE].reshape(-1, STRIDE)
    centred = whole - whole.mean(1, keepdims=True)
    rest = x[whole.size :]
    if std == "group":
        return np.concatenate([(centred / (whole.std(1, ddof=1, keepdims=True) + 1e-6)).ravel(), rest / 1e-6])
    centred = np.concatenate([centred.ravel(), rest])
    return centred / (math.sqrt((centred**2).sum() / (len(x) - 1)) + 1e-6)


@pytest.mark.parametrize("std", ["group", "batch"])
def test_areal_takes_groups_by_stride_and_the_rest_raw_and_scales_by_the_deviation_from_group_means(std: Any) -> None:
    """Ours: the rest is a smaller group, and the deviation of the batch is that from the batch's mean (Lite PPO)."""
    differing = 0
    for case in OUTCOMES:
        x, group = case.reward, np.arange(len(case.reward)) // STRIDE
        theirs = PIECES.outputs[f"stride/{std}/worth"][case.index]
        assert_values(strided(x, std=std), theirs)
        centred = np.array([value - x[group == g].mean() for value, g in zip(x, group, strict=True)])
        members = [x[group == g] if std == "group" else x for g in group]
        scale = np.array([m.std(ddof=1) if len(m) > 1 else 0.0 for m in members])
        expected = np.where(centred == 0, 0.0, centred / (scale + 1e-6))
        everyone = torch.ones(len(x), dtype=torch.bool)
        ours = Normaliser(std_level=std)(torch.tensor(x), torch.tensor(group), everyone).numpy()
        assert_values(ours, expected)
        differing += not np.allclose(ours, theirs, atol=1e-3)
    assert differing > 50


def test_areal_keeps_the_reward_of_one_alone_with_leave_one_out() -> None:
    """Ours: it has nothing to be compared with, 0."""
    norm = RLOO().reward_norm
    for case in OUTCOMES:
        assert_values(case.reward, PIECES.outputs["alone/worth"][case.index])
        x = torch.tensor(case.reward)
        assert not norm(x, torch.arange(len(x)), torch.ones(len(x), dtype=torch.bool)).any()


def test_areal_clamps_the_geometric_mean_where_the_product_is_out_of_bounds() -> None:
    """Ours: with aggregate sum the weight is the product of the sequence's ratios, within the bounds."""
    differing = 0
    for case in OUTCOMES:
        log_ratio = np.where(case.mask, case.proximal - case.behaviour, 0.0)
        product = np.exp(log_ratio.sum(1, keepdims=True))
        mean = np.exp(log_ratio.sum(1, keepdims=True) / case.mask.sum(1, keepdims=True).clip(min=1))
        theirs = np.where((product < 0.5) | (product > 2.0), mean.clip(0.5, 2.0), mean) * case.mask
        assert_tokens(theirs, case, PIECES, "weight/sequence_sum/value")
        rejection = Rejection(level="sequence", aggregate="sum", lower=0.5, upper=2.0)
        ours = weight_of(case, rejection, is_corrected=True)
        assert ours == pytest.approx(product.clip(0.5, 2.0) * case.mask, rel=1e-6)
        differing += not np.allclose(ours, theirs, atol=1e-3)
    assert differing > 100


def test_areal_spreads_the_gradient_of_a_weighted_sequence_ratio_evenly() -> None:
    """Ours: each token has its own off-policy weight in its gradient; the sum over a sequence is the same."""
    differing = 0
    for case in OUTCOMES:
        step = take_step(GSPO(aggregation="token_mean"), case)
        assert_number(step.loss, ALGORITHMS.outputs["gspo_decoupled/loss"][case.index], step.size, f"{case.index}")
        mean = step.gradient.sum(1, keepdims=True) / case.mask.sum(1, keepdims=True).clip(min=1)
        assert_tokens(mean * case.mask, case, ALGORITHMS, "gspo_decoupled/gradient")
        differing += not np.allclose(step.gradient, mean * case.mask)
    assert differing > 100


def divergence(case: Case) -> Floats:
    batch = packed(case.index)
    return to_padded(case, kl_reward(batch["proximal"], batch["reference"], batch["loss_mask"], "k3"))


def test_areal_bounds_k3_at_ten() -> None:
    """Ours does not: a token that far from the reference is to be felt."""
    for case in OUTCOMES:
        assert_tokens(divergence(case).clip(max=10), case, PIECES, "kl/bounded/value")
    assert max(divergence(case).max() for case in OUTCOMES) > 10


def test_areal_punishes_without_end_beyond_the_budget() -> None:
    """Ours: at most by the factor (DAPO, equation 13)."""
    penalty = Overlong(max_length=9, buffer=4)
    beyond = 0
    for case in OUTCOMES:
        length = case.mask.sum(1)
        assert_values(case.reward - (length - 5).clip(min=0) / 4, PIECES.outputs["overlong/reward"][case.index])
        ours = penalty.penalty(torch.tensor(length)).numpy()
        assert_values(ours, -((length - 5).clip(min=0) / 4).clip(max=1))
        beyond += int((length > 9).sum())
    assert beyond > 50


def test_areal_loses_an_outcome_whose_last_token_is_masked() -> None:
    """Ours: it comes with the last trained token, wherever the sequence ends."""
    lost = 0
    for case in OUTCOMES:
        ends_trained = case.mask[np.arange(len(case.length)), case.length - 1]
        theirs = np.where(ends_trained, case.reward, 0.0)[:, None] * case.mask
        assert_tokens(theirs, case, PIECES, "tail/advantage")
        algorithm = ReinforcePP(kl_weight=0.0, advantage_norm=None)
        assert_values(take_step(algorithm, case).advantage, case.reward[:, None] * case.mask)
        lost += int((case.is_trained & ~ends_trained).sum())
    assert lost > 50


def test_areal_takes_the_divergence_of_the_behaviour_policy_when_decoupled() -> None:
    """Ours: that of the proximal policy, which the step starts from; AReaL takes it when not decoupled."""
    for case in OUTCOMES:
        algorithm = ReinforcePP(kl_weight=0.05, advantage_norm=None)
        for policy, is_ours in ((case.behaviour, False), (case.proximal, True)):
            penalty = 0.05 * np.where(case.mask, policy - case.reference, 0.0)
            expected = (case.reward[:, None] - penalty[:, ::-1].cumsum(1)[:, ::-1]) * case.mask
            if is_ours:
                assert_values(take_step(algorithm, case).advantage, expected)
            else:
                assert_tokens(expected, case, PIECES, "decoupled_kl/advantage")
