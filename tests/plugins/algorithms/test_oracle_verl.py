"""Algorithms and pieces against verl on the golden cases; where verl differs, what it does and what ours meets."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import golden_file
import numpy as np
import pytest
import torch
from oracle_batches import (
    Step,
    assert_number,
    assert_step,
    assert_tokens,
    packed,
    take_step,
    to_packed,
    to_padded,
    weight_of,
)
from ragged_cases import MAX_LENGTH, Case, cases

from areal_lit_algorithms.cispo import CISPO
from areal_lit_algorithms.dr_grpo import DrGRPO
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.gspo import GSPO
from areal_lit_algorithms.icepop import IcePop
from areal_lit_algorithms.kpop import KPop
from areal_lit_algorithms.pieces.aggregation import token_weights
from areal_lit_algorithms.pieces.gae import LengthLambda, gae
from areal_lit_algorithms.pieces.kl import adapted_weight, estimate
from areal_lit_algorithms.pieces.normalisation import Normaliser
from areal_lit_algorithms.pieces.rejection import Rejection
from areal_lit_algorithms.policy_gradient import PolicyGradient
from areal_lit_algorithms.ppo import PPO
from areal_lit_algorithms.reinforce_pp import ReinforcePP
from areal_lit_algorithms.reinforce_pp_baseline import ReinforcePPBaseline
from areal_lit_algorithms.rloo import RLOO
from areal_lit_algorithms.sapo import SAPO

ALGORITHMS = golden_file.read("verl_algorithms")
PIECES = golden_file.read("verl_pieces")

WHITENED = Normaliser(mean_level="batch", std_level="batch", eps=0.0)
"""verl adds 1e-8 within the root, nothing to the deviation."""

WHOLE: dict[str, PolicyGradient] = {
    "grpo": GRPO(),
    "grpo_behaviour": GRPO(
        decoupled=False, old="behaviour", aggregation="sequence_mean", clip_high=0.28, clip_dual=3.0
    ),
    "grpo_proximal": GRPO(decoupled=False, aggregation="sequence_sum", clip_low=0.1, clip_high=0.3, clip_dual=1.5),
    "dr_grpo": DrGRPO(max_length=MAX_LENGTH),
    "rloo": RLOO(),
    "rloo_clipped": RLOO(clipped=True),
    "gspo": GSPO(),
    "sapo": SAPO(),
    "cispo": CISPO(),
    "icepop": IcePop(),
    "kpop": KPop(rejection=Rejection(action="mask", metric="binary_kl", upper=0.3)),
    "reinforce_pp": ReinforcePP(advantage_norm=WHITENED, kl_weight=0.25),
    "reinforce_pp_baseline": ReinforcePPBaseline(advantage_norm=WHITENED),
    "ppo": PPO(advantage_norm=WHITENED),
}

KEPT = {
    "token_k1": Rejection(action="mask", metric="k1", lower=math.log(0.5), upper=math.log(2.0)),
    "token_k2": Rejection(action="mask", metric="k2", upper=0.3),
    "token_k3": Rejection(action="mask", metric="k3", upper=0.3),
    "seq_sum_k1": Rejection(
        level="sequence", action="mask", metric="k1", aggregate="sum", lower=math.log(0.3), upper=math.log(3.0)
    ),
    "seq_sum_k2": Rejection(level="sequence", action="mask", metric="k2", aggregate="sum", upper=1.0),
    "seq_sum_k3": Rejection(level="sequence", action="mask", metric="k3", aggregate="sum", upper=1.0),
    "seq_mean_k1": Rejection(level="sequence", action="mask", metric="k1", lower=math.log(0.8), upper=math.log(1.25)),
    "seq_mean_k2": Rejection(level="sequence", action="mask", metric="k2", upper=0.2),
    "seq_mean_k3": Rejection(level="sequence", action="mask", metric="k3", upper=0.2),
    "seq_max_k2": Rejection(level="sequence", action="mask", metric="k2", aggregate="max", upper=0.5),
    "seq_max_k3": Rejection(level="sequence", action="mask", metric="k3", aggregate="max", upper=0.5),
}

WEIGHTS = {
    "all": Rejection(upper=1e9),
    "clamp": Rejection(upper=5.0),
    "mask": Rejection(action="mask", lower=0.5, upper=5.0),
    "sequence": Rejection(level="sequence", aggregate="sum", upper=5.0),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_algorithms(name: str) -> None:
    for case in cases():
        step = take_step(WHOLE[name], case)
        assert_step(step, case, ALGORITHMS, name)
        if WHOLE[name].advantage_norm is None:  # verl's whitening leaves 1e-9 of an advantage of 0, and counts its clip
            assert_clipped(step, case, name)


def assert_clipped(step: Step, case: Case, name: str) -> None:
    """As many tokens are held back by each clip as in verl."""
    ours = {"clipfrac": ("clip_low", "clip_high"), "clipfrac_lower": ("clip_dual",)}
    for theirs, metrics in ours.items():
        fraction = sum(step.metrics.get(metric, 0.0) for metric in metrics)
        assert_number(fraction, ALGORITHMS.outputs[f"{name}/{theirs}"][case.index], 1.0, f"{name}/{theirs}")


def test_critic() -> None:
    for case in cases():
        assert_step(take_step(PPO(), case, "critic"), case, ALGORITHMS, "critic", has_advantage=False)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "sequence_sum", "constant"])
def test_aggregation(aggregation: Any) -> None:
    for case in cases():
        batch = packed(case.index)
        terms_T = batch["value"] * token_weights(
            batch, aggregation, max_length=MAX_LENGTH if aggregation == "constant" else None
        )
        theirs = PIECES.outputs[f"aggregation/{aggregation}/loss"][case.index]
        assert_number(float(terms_T.sum()), theirs, float(terms_T.abs().sum()), f"{aggregation} of case {case.index}")


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3+"])
def test_divergence_and_its_gradient(estimator: Any) -> None:
    for case in cases():
        current_T = to_packed(case, case.current).float().requires_grad_()
        value_T = estimate(current_T - packed(case.index)["reference"], estimator)
        (gradient_T,) = torch.autograd.grad(value_T.sum(), current_T)
        assert_tokens(to_padded(case, value_T), case, PIECES, f"kl/{estimator}/value")
        assert_tokens(to_padded(case, gradient_T), case, PIECES, f"kl/{estimator}/gradient")


@pytest.mark.parametrize("name", WEIGHTS)
def test_off_policy_weight(name: str) -> None:
    for case in cases():
        weight = weight_of(case, WEIGHTS[name], is_corrected=True)
        assert_tokens(weight, case, PIECES, f"weight/{name}/value")


@pytest.mark.parametrize("name", KEPT)
def test_rejection(name: str) -> None:
    dropped = 0
    for case in cases():
        kept = weight_of(case, KEPT[name], is_corrected=False)
        assert_tokens(kept, case, PIECES, f"kept/{name}/value")
        dropped += int((kept[case.mask] == 0).sum())
    assert dropped > 100


@pytest.mark.parametrize("name", KEPT)
def test_rejection_with_a_cap_on_the_weight(name: str) -> None:
    capped = 0
    for case in cases():
        weight = weight_of(case, replace(KEPT[name], weight_cap=1.5), is_corrected=True)
        assert_tokens(weight, case, PIECES, f"capped/{name}/value")
        capped += int((weight == 1.5).sum())
    assert capped > 100


@pytest.mark.parametrize(
    ("name", "gamma", "lam"), [("gae", 0.99, 0.9), ("monte_carlo", 0.95, 1.0), ("one_step", 0.9, 0.0)]
)
def test_returns_of_finished_sequences(name: str, gamma: float, lam: float) -> None:
    for case in cases():
        batch = packed(case.index)
        batch = batch.with_columns(truncated=torch.zeros_like(batch["truncated"]))
        advantage_T = gae(batch, to_packed(case, case.token_reward), gamma=gamma, lam=lam)
        assert_tokens(to_padded(case, advantage_T) + case.value, case, PIECES, f"finished/{name}/returns")


def test_advantages_of_turns() -> None:
    for case in cases():
        reward_T = to_packed(case, case.token_reward)
        advantage_T = gae(packed(case.index), reward_T, gamma=0.95, lam=0.8, level="turn")
        assert_tokens(to_padded(case, advantage_T), case, PIECES, "by_turn/advantage")


@pytest.mark.parametrize(("name", "lam"), [("alpha", LengthLambda(alpha=0.3)), ("q", LengthLambda(q=0.5))])
def test_lambda_by_length(name: str, lam: LengthLambda) -> None:
    for case in cases():
        advantage_T = gae(packed(case.index), to_packed(case, case.token_reward), gamma=0.99, lam=lam)
        assert_tokens(to_padded(case, advantage_T), case, PIECES, f"by_length/{name}/advantage")


def test_adaptive_weight() -> None:
    for case in cases():
        ours = adapted_weight(0.2, abs(case.final_value[0]) / 5, target=0.1, gain=0.1)
        assert_number(ours, PIECES.outputs["adaptive/weight"][case.index], ours, f"weight of case {case.index}")


# --- where verl differs --------------------------------------------------------------------------


def estimated(values: list[float]) -> np.ndarray[Any, Any]:
    """The closed form: centred and divided by the deviation of n - 1."""
    x = np.array(values)
    return (x - x.mean()) / (x.std(ddof=1) + 1e-6)


def test_verl_compares_empty_completions_and_keeps_the_reward_of_one_alone() -> None:
    """Ours: only trained samples are compared, and one alone has nothing to learn from."""
    seen = {"alone": 0, "with_empty": 0}
    for case in cases():
        theirs = np.array(PIECES.outputs["everyone/worth"][case.index])
        ours = GRPO().advantages(packed(case.index)).numpy()
        for each in np.unique(case.group):
            members = case.group == each
            trained = members & case.is_trained
            if members.sum() == 1:
                seen["alone"] += 1
                assert theirs[members] == pytest.approx(case.reward[members], abs=2e-6)
                assert not ours[members].any()
                continue
            assert theirs[members] == pytest.approx(estimated(case.reward[members]), abs=1e-6)
            seen["with_empty"] += not trained[members].all()
            expected = estimated(case.reward[trained]) if trained.sum() > 1 else 0.0
            assert ours[trained] == pytest.approx(expected, abs=1e-6)
            assert not ours[members & ~trained].any()
    assert min(seen.values()) > 50


def test_verl_takes_rejected_tokens_out_of_the_denominator() -> None:
    """Ours keeps them in, so that rejection never makes the rest louder."""
    for case in cases():
        batch = packed(case.index)
        kept_T = to_packed(case, weight_of(case, KEPT["token_k2"], is_corrected=False))
        terms_T = batch["value"] * kept_T * token_weights(batch, "token_mean")
        share = float(kept_T.sum() / batch["loss_mask"].sum())
        theirs = PIECES.outputs["kept_loss/loss"][case.index] * share
        assert_number(float(terms_T.sum()), theirs, float(terms_T.abs().sum()), f"case {case.index}")


def at_value(case: Case) -> torch.Tensor:
    return packed(case.index)["final_value"].where(packed(case.index)["truncated"], 0.0)


def test_verl_ends_truncated_sequences_with_nothing() -> None:
    """Ours goes on with the value after the last token: in verl's terms, the last reward plus gamma times it."""
    differing = 0
    for case in cases():
        batch = packed(case.index)
        ours = to_padded(case, gae(batch, to_packed(case, case.token_reward), gamma=0.99, lam=0.9))
        extra = 0.99 * case.on_last(at_value(case).double().numpy())
        finished = batch.with_columns(truncated=torch.zeros_like(batch["truncated"]))
        plus = to_padded(case, gae(finished, to_packed(case, case.token_reward + extra), gamma=0.99, lam=0.9))
        assert ours == pytest.approx(plus, abs=1e-12)
        theirs = PIECES.outputs["finished/gae/returns"][case.index]
        differing += not np.allclose(case.projected(ours + case.value), theirs)
    assert differing > 100
