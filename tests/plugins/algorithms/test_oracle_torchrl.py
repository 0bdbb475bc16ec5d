"""Advantages, PPO and its critic against torchrl on the golden cases, truncated sequences and turn rewards included."""

from __future__ import annotations

from dataclasses import replace

import golden_file
import pytest
from oracle_batches import assert_step, assert_tokens, packed, take_step, to_packed, to_padded
from ragged_cases import cases

from areal_lit_algorithms.pieces.gae import gae
from areal_lit_algorithms.pieces.normalisation import Normaliser
from areal_lit_algorithms.pieces.rejection import Rejection, off_policy_weight
from areal_lit_algorithms.ppo import PPO

TORCHRL = golden_file.read("torchrl")

WHITENED = Normaliser(mean_level="batch", std_level="batch", eps=0.0)
"""torchrl adds nothing to the deviation."""

WHOLE = {
    "behaviour": PPO(advantage_norm=WHITENED, decoupled=False, old="behaviour", rejection=None),
    "decoupled": PPO(advantage_norm=WHITENED, clip_high=0.28, rejection=None, value_clip=None),
}


@pytest.mark.parametrize(
    ("name", "gamma", "lam"), [("gae", 1.0, 0.95), ("monte_carlo", 0.97, 1.0), ("one_step", 0.9, 0.0)]
)
def test_advantages_and_returns(name: str, gamma: float, lam: float) -> None:
    for case in cases():
        batch = packed(case.index)
        advantage = to_padded(case, gae(batch, to_packed(case, case.token_reward), gamma=gamma, lam=lam))
        assert_tokens(advantage, case, TORCHRL, f"{name}/advantage")
        assert_tokens(advantage + case.value * case.mask, case, TORCHRL, f"{name}/returns")


@pytest.mark.parametrize("name", WHOLE)
def test_ppo(name: str) -> None:
    for case in cases():
        assert_step(take_step(WHOLE[name], case), case, TORCHRL, f"ppo_{name}", has_advantage=False)


@pytest.mark.parametrize("name", WHOLE)
def test_critic_is_half_of_torchrls(name: str) -> None:
    for case in cases():
        step = take_step(WHOLE[name], case, "critic")
        doubled = replace(step, loss=2 * step.loss, size=2 * step.size, gradient=2 * step.gradient)
        assert_step(doubled, case, TORCHRL, f"critic_{name}", has_advantage=False)


@pytest.mark.parametrize("package", ["torchrl", "rlax"])
def test_off_policy_weight_is_vtraces(package: str) -> None:
    """V-trace's error of one step is the truncated ratio times that of a step."""
    golden = golden_file.read(package)
    for case in cases():
        batch = packed(case.index)
        error_T = gae(batch, to_packed(case, case.token_reward), gamma=0.9, lam=0.0)
        weight_T, _ = off_policy_weight(
            batch["proximal"], batch["logprob"], batch, is_corrected=True, rejection=Rejection(upper=5.0)
        )
        assert_tokens(to_padded(case, weight_T * error_T), case, golden, "vtrace/error")
