"""Makes areal_algorithms.json and areal_pieces.json: AReaL's advantages, losses, normalisation, rejection, proximals.

AReaL rounds to float32 in places; inputs are float64. Cases are taken without their turns' rewards. Its groups are runs
of one length: the normaliser is called once per group.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import torch
from areal.api.cli_args import NormConfig, RejectionSamplingConfig
from areal.trainer.dpo.dpo_engine import compute_dpo_loss
from areal.trainer.ppo.actor import _apply_m2po_masking, compute_prox_logp_approximations
from areal.utils.data import KLEstimator, Normalization
from areal.utils.functional import ppo_actor_loss_fn, ppo_critic_loss_fn, reward_overlong_penalty, sapo_loss_fn
from areal.utils.functional.functional import apply_rejection_sampling
from areal_actor import advantages
from golden_file import Recorder
from ragged_cases import MAX_LENGTH, Case, Floats, cases
from torch import Tensor

CLAMPED = RejectionSamplingConfig(level="token", action="clamp", metric="ratio", upper=5.0)
ICEPOP = RejectionSamplingConfig(level="token", action="mask", metric="ratio", lower=0.5, upper=5.0)
UNCLIPPED = 1e9
BOUNDS = {"ratio": (0.5, 2.0), "kl_k1": (-0.2, 0.2), "kl_k2": (None, 0.2), "kl_k3": (None, 0.2)}
LEVELS = [("token", "mean"), ("sequence", "sum"), ("sequence", "mean"), ("sequence", "max")]
STRIDE = 3
BETAS = {"sigmoid": 0.1, "ipo": 0.25}


def main() -> None:
    for name, record in {"areal_algorithms": algorithms, "areal_pieces": pieces}.items():
        recorder = Recorder()
        for case in cases():
            record(recorder, case.without_turn_rewards)
        recorder.write(name, package="areal")


def tensor(x: Any) -> Tensor:
    return torch.tensor(x)


# --- advantages ----------------------------------------------------------------------------------


def compared(case: Case, reward: Floats, **settings: Any) -> Floats:
    """Each trained sample's reward among those of its group, [B]; 0 where it is alone."""
    result = np.zeros(len(reward))
    for each in np.unique(case.group[case.is_compared]):
        rows = case.is_compared & (case.group == each)
        norm = Normalization(NormConfig(mean_level="group", eps=1e-6, group_size=int(rows.sum()), **settings))
        result[rows] = norm(tensor(reward[rows])).numpy()
    return result


def whitened(advantage: Tensor, case: Case) -> Tensor:
    norm = Normalization(NormConfig(mean_level="batch", std_level="batch", eps=1e-6))
    return norm(advantage, tensor(case.mask).float())


def overlong(case: Case, *, budget: int, buffer: int) -> Floats:
    """The rewards with a penalty on completions that come near the budget, [B]."""
    data = {"rewards": tensor(case.reward), "input_ids": tensor(case.turn), "loss_mask": tensor(case.mask)}
    return reward_overlong_penalty(data, buffer, 1.0, budget)["rewards"].numpy()


# --- losses --------------------------------------------------------------------------------------


class Losses:
    """Records AReaL's losses of a case and their gradients."""

    def __init__(self, recorder: Recorder, case: Case) -> None:
        self.recorder, self.case = recorder, case
        self.mask = tensor(case.mask)
        self.behaviour, self.proximal = tensor(case.behaviour), tensor(case.proximal)
        self.current = tensor(case.current).requires_grad_()

    def record(self, name: str, advantage: Tensor, loss: Tensor, leaf: Tensor | None = None) -> None:
        (gradient,) = torch.autograd.grad(loss, self.current if leaf is None else leaf)
        self.recorder.add(self.case, name, advantage=advantage, loss=loss.item(), gradient=gradient)

    def clip(self, name: str, advantage: Tensor, old: Tensor | None = None, **settings: Any) -> None:
        """The clipped ratio to ``old``, the proximal policy if not given."""
        loss, _ = ppo_actor_loss_fn(
            self.current, self.proximal if old is None else old, self.behaviour, advantage, loss_mask=self.mask,
            **{"eps_clip": 0.2, "rejection_sampling": CLAMPED, **settings},
        )  # fmt: skip
        self.record(name, advantage, loss)


def algorithms(recorder: Recorder, case: Case) -> None:
    losses = Losses(recorder, case)
    centred = advantages(case, compared(case, case.reward, std_level=None))
    of_grpo(losses, advantages(case, compared(case, case.reward, std_level="group")))
    losses.clip("grpo_centred", centred, eps_clip_higher=0.3, c_clip=1.5)
    penalised = overlong(case, budget=MAX_LENGTH, buffer=8)
    losses.clip("dapo", advantages(case, compared(case, penalised, std_level="group")), eps_clip_higher=0.28)
    losses.clip("rloo_clipped", advantages(case, compared(case, case.reward, std_level=None, mean_leave1out=True)))
    losses.clip("reinforce_pp", whitened(advantages(case, case.reward, kl=0.05), case))
    losses.clip("reinforce_pp_baseline", whitened(centred, case))
    ppo = advantages(case, case.reward, lam=0.95, value=case.value)
    losses.clip("ppo", whitened(ppo, case))
    new_value, value = tensor(case.new_value).float().requires_grad_(), tensor(case.value).float()
    for shape in ("mse", "huber"):
        critic, _ = ppo_critic_loss_fn(new_value, value, ppo + value, 0.2, losses.mask, shape)
        losses.record(f"critic_{shape}", ppo, critic, new_value)
    preferences(recorder, case)


def of_grpo(losses: Losses, advantage: Tensor) -> None:
    """What differs from grpo in its loss only."""
    losses.clip("grpo", advantage)
    losses.clip("grpo_behaviour", advantage, losses.behaviour, rejection_sampling=None)
    losses.clip("icepop", advantage, rejection_sampling=ICEPOP)
    sequence = {"eps_clip": 3e-4, "eps_clip_higher": 4e-4, "importance_sampling_level": "sequence"}
    losses.clip("gspo", advantage, rejection_sampling=None, **sequence)
    losses.clip("gspo_decoupled", advantage, **sequence)
    for way in ("loglinear", "linear"):
        estimates = compute_prox_logp_approximations(
            losses.behaviour, losses.current.detach(), tensor(losses.case.version), losses.case.step + 1, way
        )
        losses.clip(f"grpo_{way}", advantage, estimates[way])
    sapo, _ = sapo_loss_fn(losses.current, losses.proximal, advantage, 1.0, 1.05, losses.mask)
    losses.record("sapo", advantage, sapo)
    # the selection is AReaL's, the loss the paper's: no clip of the ratio to behaviour; what is dropped stays counted
    kept = _apply_m2po_masking(losses.behaviour, losses.proximal, losses.mask, 0.04)
    m2po, _ = ppo_actor_loss_fn(losses.current, losses.behaviour, losses.behaviour, advantage, UNCLIPPED, kept)
    losses.record("m2po", advantage, m2po * kept.sum() / losses.mask.sum())


def preferences(recorder: Recorder, case: Case) -> None:
    """Pairs of rows, each after one prompt token; AReaL's log-probs at a position are of the token that follows."""
    current = tensor(case.current).requires_grad_()
    rows = tensor(case.pairs.reshape(-1))
    width = case.mask.shape[1] + 1

    def packed(x: Tensor, *, before: int) -> Tensor:
        return torch.nn.functional.pad(x[rows], (before, 1 - before)).flatten()

    data = {
        "cu_seqlens": torch.arange(len(rows) + 1) * width,
        "loss_mask": packed(tensor(case.mask), before=1),
        "ref_logprobs": packed(tensor(case.reference), before=0),
    }
    for loss_type, beta in BETAS.items():
        loss = compute_dpo_loss(packed(current, before=0), torch.zeros(()), data, beta=beta, loss_type=loss_type)
        (gradient,) = torch.autograd.grad(loss, current)
        recorder.add(case, f"dpo/{loss_type}", loss=loss.item(), gradient=gradient)


# --- pieces --------------------------------------------------------------------------------------


def pieces(recorder: Recorder, case: Case) -> None:
    for record in (divergences, normalisations, rejections):
        record(recorder, case)
    recorder.add(case, "overlong", reward=overlong(case, budget=9, buffer=4))
    recorder.add(case, "tail", advantage=advantages(case, case.reward, has_tail=True))
    recorder.add(case, "decoupled_kl", advantage=advantages(case, case.reward, kl=0.05, is_decoupled=True))


def divergences(recorder: Recorder, case: Case) -> None:
    proximal, reference = tensor(case.proximal), tensor(case.reference)
    for estimator in ("k1", "k2", "k3"):
        recorder.add(case, f"kl/{estimator}", value=KLEstimator(estimator, apply_clamp=False)(proximal, reference))
    recorder.add(case, "kl/bounded", value=KLEstimator("k3")(proximal, reference))


def normalisations(recorder: Recorder, case: Case) -> None:
    def normalised(x: Floats, *mask: Tensor, **settings: Any) -> Tensor:
        return Normalization(NormConfig(eps=1e-6, **settings))(tensor(x), *mask)

    for std, others in (("batch", False), (None, True), ("batch", True)):
        value = normalised(case.value, tensor(case.mask), mean_level="batch", std_level=std, mean_leave1out=others)
        recorder.add(case, f"norm/batch_{std}_{others}".lower(), value=value)
    for unbiased in (True, False):
        worth = compared(case, case.reward, std_level="group", std_unbiased=unbiased)
        recorder.add(case, f"group_norm/{unbiased}".lower(), worth=worth)
    for std in ("group", "batch"):
        worth = normalised(case.reward, mean_level="group", std_level=std, group_size=STRIDE)
        recorder.add(case, f"stride/{std}", worth=worth)
    alone = normalised(case.reward, mean_level="group", std_level=None, mean_leave1out=True, group_size=1)
    recorder.add(case, "alone", worth=alone)


def rejections(recorder: Recorder, case: Case) -> None:
    mask, behaviour, proximal = tensor(case.mask), tensor(case.behaviour), tensor(case.proximal)
    for (metric, (lower, upper)), (level, aggregate) in product(BOUNDS.items(), LEVELS):
        # AReaL estimates the divergence of its first argument, ours that of the policy that drew the tokens
        first, second = (proximal, behaviour) if metric == "ratio" else (behaviour, proximal)
        settings = RejectionSamplingConfig(level, "mask", metric, aggregate, upper, lower)
        kept = apply_rejection_sampling(first, second, mask, None, settings).loss_mask
        recorder.add(case, f"kept/{metric.removeprefix('kl_')}_{level}_{aggregate}", value=kept)
    for level, aggregate in LEVELS[:3]:
        settings = RejectionSamplingConfig(level, "clamp", "ratio", aggregate, 2.0, 0.5)
        weight = apply_rejection_sampling(proximal, behaviour, mask, None, settings).behave_imp_weight
        recorder.add(case, f"weight/{level}_{aggregate}", value=weight)


if __name__ == "__main__":
    main()
