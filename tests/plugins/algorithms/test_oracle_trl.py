"""Algorithms against trl's trainers on the golden cases; where trl differs, what it does and what ours meets."""

from __future__ import annotations

from typing import Any

import golden_file
import numpy as np
import pytest
import torch
from oracle_batches import assert_number, assert_step, assert_tokens, packed, take_step, to_packed, to_padded
from oracle_pairs import OfflineStep, take_offline_step, take_pair_step
from published_settings import OTHERS, OVERLONG
from ragged_cases import MAX_LENGTH, Case, cases

from areal_lit_algorithms.cispo import CISPO
from areal_lit_algorithms.dapo import DAPO
from areal_lit_algorithms.dpo import DPO
from areal_lit_algorithms.dr_grpo import DrGRPO
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.gspo import GSPO
from areal_lit_algorithms.icepop import IcePop
from areal_lit_algorithms.lite_ppo import LitePPO
from areal_lit_algorithms.pieces.aggregation import token_weights
from areal_lit_algorithms.pieces.kl import estimate
from areal_lit_algorithms.pieces.normalisation import Normaliser
from areal_lit_algorithms.pieces.rejection import Rejection, off_policy_weight
from areal_lit_algorithms.policy_gradient import PolicyGradient
from areal_lit_algorithms.reward_model import RewardModel
from areal_lit_algorithms.rloo import RLOO
from areal_lit_algorithms.sapo import SAPO
from areal_lit_algorithms.sft import SFT

TRL = golden_file.read("trl")

GROUP = Normaliser(eps=1e-4)
"""trl's eps; all else is ours."""

WHOLE: dict[str, PolicyGradient] = {
    "grpo": GRPO(reward_norm=GROUP),
    "grpo_proximal": GRPO(
        reward_norm=GROUP, decoupled=False, aggregation="sequence_mean", clip_high=0.28, clip_dual=3.0
    ),
    "grpo_behaviour": GRPO(reward_norm=GROUP, decoupled=False, old="behaviour", clip_low=0.1, clip_high=0.1),
    "dr_grpo": DrGRPO(max_length=MAX_LENGTH),
    "dapo": DAPO(reward_shaping=OVERLONG, reward_norm=GROUP),
    "lite_ppo": LitePPO(reward_norm=Normaliser(std_level="batch", eps=1e-4)),
    "sapo": SAPO(reward_norm=GROUP),
    "cispo": CISPO(reward_norm=GROUP),
    "icepop": IcePop(reward_norm=GROUP),
    "sequence_truncate": GRPO(reward_norm=GROUP, rejection=Rejection(level="sequence", aggregate="sum", upper=5.0)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_algorithms(name: str) -> None:
    for case in cases():
        step = take_step(WHOLE[name], case)
        assert_step(step, case, TRL, name, has_advantage=False)
        recorded = f"{name}/advantage" if f"{name}/advantage" in TRL.outputs else "grpo/advantage"
        assert_tokens(step.advantage, case, TRL, recorded)


def test_rloo_on_policy() -> None:
    """trl's ratio is the sequence's: at 1 its slope is REINFORCE's."""
    algorithm = RLOO(decoupled=False, old="proximal", rejection=None)
    for case in cases():
        step = take_step(algorithm, case)
        assert_tokens(step.advantage, case, TRL, "rloo/advantage")
        if not case.has_turn_rewards:
            assert_tokens(step.gradient, case, TRL, "rloo/gradient")


@pytest.mark.parametrize("loss", ["sigmoid", "ipo", "hinge"])
def test_dpo(loss: Any) -> None:
    algorithm = DPO(loss=loss, beta={"sigmoid": 0.1, "ipo": 0.25, "hinge": 0.4}[loss])
    names = ("pair_accuracy", "reward_margin", "reward_chosen", "reward_rejected")
    for case in cases():
        step = take_pair_step(algorithm, case)
        assert_offline(step, case, f"dpo/{loss}")
        assert [step.metrics[name] for name in names] == pytest.approx(
            TRL.outputs[f"dpo/{loss}/metrics"][case.index], abs=1e-6
        )


def test_reward_model() -> None:
    for case in cases():
        step = take_pair_step(RewardModel(), case)
        assert_number(step.loss, TRL.outputs["reward_model/loss"][case.index], step.size, f"loss of case {case.index}")
        assert step.gradient.tolist() == pytest.approx(TRL.outputs["reward_model/gradient"][case.index], abs=1e-6)
        metrics = [step.metrics[name] for name in ("pair_accuracy", "reward_margin")]
        assert metrics == pytest.approx(TRL.outputs["reward_model/metrics"][case.index], abs=1e-6)


def test_sft() -> None:
    for case in cases():
        assert_offline(take_offline_step(SFT(), case), case, "sft")


def assert_offline(step: OfflineStep, case: Case, name: str) -> None:
    assert_number(step.loss, TRL.outputs[f"{name}/loss"][case.index], step.size, f"{name}/loss of case {case.index}")
    assert_tokens(step.gradient, case, TRL, f"{name}/gradient")


# --- where trl differs: docs/oracles.md ----------------------------------------------------------


def test_gspo_spreads_a_sequences_slope_evenly() -> None:
    """trl differentiates the sequence's ratio; ours is GSPO-token, where each keeps its own weight and advantage."""
    algorithm = GSPO(reward_norm=GROUP)
    for case in cases():
        step = take_step(algorithm, case)
        assert_number(step.loss, TRL.outputs["gspo/loss"][case.index], step.size, f"loss of case {case.index}")
        mean = step.gradient.sum(1) / case.mask.sum(1).clip(min=1)
        assert_tokens(np.where(case.mask, mean[:, None], 0.0), case, TRL, "gspo/gradient")


def test_empty_completions_count_in_trls_mean_over_sequences() -> None:
    """Ours is over sequences with trained tokens."""
    for case in cases():
        step = take_step(WHOLE["grpo_proximal"], case)
        ours = step.loss * case.is_trained.mean()
        assert_number(ours, TRL.outputs["empty/loss"][case.index], step.size, f"loss of case {case.index}")


def test_a_sequence_that_is_kept_has_its_own_ratio_as_weight() -> None:
    """Of ``sequence_mask``; ours keeps the same sequences, and each token its own weight."""
    rejection = Rejection(level="sequence", action="mask", aggregate="sum", upper=5.0)
    ours = GRPO(reward_norm=GROUP, decoupled=False, rejection=None)
    dropped = 0
    for case in cases():
        batch = packed(case.index)
        kept_T, _ = off_policy_weight(
            batch["proximal"], batch["logprob"], batch, is_corrected=False, rejection=rejection
        )
        kept = to_padded(case, kept_T)
        theirs = np.array(TRL.outputs["sequence_mask/is_kept"][case.index])
        assert np.array_equal(kept[case.mask], np.broadcast_to(all_rows(case, theirs), kept.shape)[case.mask])
        ratio = np.exp(np.where(case.mask, case.proximal - case.behaviour, 0.0).sum(1, keepdims=True))
        weighted = take_step(ours, case).gradient * kept * ratio
        assert_tokens(weighted, case, TRL, "sequence_mask/gradient")
        dropped += int((theirs == 0).sum())
    assert dropped > 100


def all_rows(case: Case, trained: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Numbers of trained rows as a column of all rows, [B, 1]."""
    result = np.zeros((len(case.group), 1))
    result[case.is_trained, 0] = trained
    return result


def test_trls_divergence_has_no_ratio_or_one_with_a_gradient() -> None:
    """Ours carries the ratio to the behaviour policy, up to 10 and without gradient."""
    for case in cases():
        batch = packed(case.index)
        current_T = to_packed(case, case.current).float().requires_grad_()
        weight_T = 0.1 * token_weights(batch, "token_mean")
        for name, ratio_T in {"kl": 1.0, "kl_corrected": (current_T.detach() - batch["logprob"]).exp()}.items():
            terms_T = weight_T * ratio_T * estimate(current_T - batch["reference"], "k3")
            (slope_T,) = torch.autograd.grad(terms_T.sum(), current_T)
            terms_T = terms_T.detach()
            loss, size = terms_T.sum().item(), terms_T.abs().sum().item()
            assert_number(loss, TRL.outputs[f"{name}/loss"][case.index], size, f"{name} of case {case.index}")
            through_ratio_T = terms_T if name == "kl_corrected" else 0.0
            assert_tokens(to_padded(case, slope_T + through_ratio_T), case, TRL, f"{name}/gradient")


def test_rloo_off_policy_clips_whole_sequences() -> None:
    """trl's ratio is the product over the sequence; ours is REINFORCE with token weights, or PPO's clip per token."""
    for case in (case for case in cases() if not case.has_turn_rewards):
        rows = case.is_trained
        advantage = take_step(RLOO(), case).advantage[rows]
        worth = advantage.sum(1) / case.mask[rows].sum(1)
        ratio = np.exp(np.where(case.mask, case.current - case.proximal, 0.0).sum(1))[rows]
        terms = -np.minimum(ratio * worth, ratio.clip(0.8, 1.2) * worth)
        theirs = TRL.outputs["rloo_sequence/loss"][case.index]
        assert_number(terms.mean(), theirs, np.abs(terms).mean(), f"loss of case {case.index}")


def test_rloo_compares_rewards_less_their_divergence() -> None:
    """Ours compares the rewards and takes the divergence off afterwards, from each token what is still to come."""
    algorithm = RLOO(kl_weight=0.1, kl_in="reward", kl_estimator="k1")
    for case in (case for case in cases() if not case.has_turn_rewards):
        k1 = np.where(case.mask, case.proximal - case.reference, 0.0)
        penalised_S = torch.from_numpy(case.reward - 0.1 * k1.sum(1))
        theirs = OTHERS(penalised_S, torch.from_numpy(case.group), torch.from_numpy(case.is_trained))
        recorded = TRL.outputs["rloo_kl/advantage"][case.index]
        assert theirs[case.is_trained].tolist() == pytest.approx(recorded, rel=1e-6, abs=1e-6)
        worth = take_step(RLOO(), case).advantage
        to_go = 0.1 * k1[:, ::-1].cumsum(1)[:, ::-1]
        ours = np.where(case.mask, worth - to_go, 0.0)
        assert take_step(algorithm, case).advantage == pytest.approx(ours, abs=1e-6)
