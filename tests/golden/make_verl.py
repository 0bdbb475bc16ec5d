"""Makes verl_algorithms.json and verl_pieces.json: verl's estimators, losses, aggregations, rollout corrections.

Float64. verl has no process supervision: a turn's reward is compared with those of all turns of its group by verl's
estimator, one row per turn, and what is to come from a token is verl's undiscounted return.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from golden_file import Recorder
from omegaconf import OmegaConf
from ragged_cases import MAX_LENGTH, Case, Floats, cases
from torch import Tensor
from verl.trainer.ppo import core_algos as verl
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights, compute_rollout_rejection_mask
from verl.utils.torch_functional import masked_whiten
from verl.workers.config import ActorConfig

AGGREGATIONS = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "sequence_sum": "seq-mean-token-sum",
    "constant": "seq-mean-token-sum-norm",
}
UNCLIPPED = 1e9
BINARY_KL = 0.3
"""KPop's bound, low enough that it does something here."""
WEIGHTS = {
    "all": ("token", UNCLIPPED),
    "clamp": ("token", 5.0),
    "mask": ("token", "0.5_5.0"),
    "sequence": ("sequence", 5.0),
}
REJECTIONS = {
    "token_k1": "0.5_2.0", "token_k2": "0.3", "token_k3": "0.3",
    "seq_sum_k1": "0.3_3.0", "seq_sum_k2": "1.0", "seq_sum_k3": "1.0",
    "seq_mean_k1": "0.8_1.25", "seq_mean_k2": "0.2", "seq_mean_k3": "0.2",
    "seq_max_k2": "0.5", "seq_max_k3": "0.5",
}  # fmt: skip
KL_WEIGHT = 0.25
"""In the reward; large enough that the 1e-8 in the root of verl's whitening does not show where rewards are equal."""
Estimate = Callable[[Tensor, np.ndarray[Any, Any]], Tensor]


def config(low: float = 0.2, high: float = 0.2, dual: float = UNCLIPPED, **info: Any) -> ActorConfig:
    return ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=low, clip_ratio_high=high,
        clip_ratio_c=dual, global_batch_info=info,
    )  # fmt: skip


# --- advantages ----------------------------------------------------------------------------------


def outcome(estimator: Callable[..., Any], **settings: Any) -> Estimate:
    """One of verl's estimators on plain numbers: each a completion of one token."""

    def estimate(x: Tensor, group: np.ndarray[Any, Any]) -> Tensor:
        return estimator(x[:, None].clone(), torch.ones_like(x[:, None]), index=group, **settings)[0][:, 0]

    return estimate


GRPO = outcome(verl.compute_grpo_outcome_advantage)
CENTRED = outcome(verl.compute_grpo_outcome_advantage, norm_adv_by_std_in_grpo=False)
RLOO = outcome(verl.compute_rloo_outcome_advantage)


def compared(x: Floats, group: np.ndarray[Any, Any], valid: np.ndarray[Any, Any], estimate: Estimate) -> Floats:
    """The estimate among valid members of a group with others, 0 elsewhere; x's shape [N]."""
    peers = ((group[:, None] == group[None]) & valid[None]).sum(1)
    rows = valid & (peers > 1)
    result = np.zeros(len(x))
    result[rows] = estimate(torch.tensor(x[rows]), group[rows]).numpy()
    return result


def worth(case: Case, estimate: Estimate) -> Tensor:
    """What each token earns, [B, S]: its sample's worth on the last trained token, its turn's on the turn's."""
    result = case.on_last(compared(case.reward, case.group, case.is_trained, estimate))
    row, column = case.turn_reward.nonzero()
    turns = case.turn_reward[row, column]
    result[row, column] += compared(turns, case.group[row], np.ones(len(row), dtype=bool), estimate)
    return torch.tensor(result)


def to_go(token_reward: Tensor, mask: Tensor, gamma: float = 1.0) -> tuple[Tensor, Tensor]:
    """The whitened returns, and the returns; REINFORCE++."""
    settings = OmegaConf.create({"gamma": gamma})
    return verl.compute_reinforce_plus_plus_outcome_advantage(token_reward, mask, config=settings)


def with_what_follows(case: Case, gamma: float) -> Tensor:
    """Rewards per token, [B, S]. A truncated sequence goes on with the value after it, for which verl has no place but
    the last reward."""
    following = np.where(case.truncated, case.final_value, 0.0)
    return torch.tensor(case.token_reward + gamma * case.on_last(following))


def turn_advantages(case: Case, gamma: float, lam: float) -> Tensor:
    """GAE with turns as verl's tokens: rewards summed, the value of the first token, the result on all tokens."""
    reward, value, mask = torch.zeros(3, len(case.group), 1 + case.turn.max(), dtype=torch.float64)
    for row, column in zip(*case.mask.nonzero(), strict=True):
        turn = case.turn[row, column]
        reward[row, turn] += with_what_follows(case, gamma)[row, column]
        value[row, turn] += case.value[row, column] * (1 - mask[row, turn])
        mask[row, turn] = 1.0
    _, returns = verl.compute_gae_advantage_return(reward, value, mask, gamma, lam)
    return (returns - value).gather(1, torch.tensor(case.turn).clamp(min=0))


# --- losses --------------------------------------------------------------------------------------


class Columns:
    """A case's arrays as float64 tensors."""

    def __init__(self, case: Case) -> None:
        self.mask = torch.tensor(case.mask, dtype=torch.float64)
        self.behaviour, self.proximal, self.reference = map(
            torch.tensor, (case.behaviour, case.proximal, case.reference)
        )
        self.value, self.new_value = torch.tensor(case.value), torch.tensor(case.new_value)
        self.current = torch.tensor(case.current, requires_grad=True)

    def weight(self, name: str = "clamp") -> Tensor:
        level, threshold = WEIGHTS[name]
        weight, _ = compute_rollout_correction_weights(self.proximal - self.behaviour, self.mask, level, threshold)
        return weight

    def is_near(self, upper: float) -> Tensor:
        """1 where neither binary KL between proximal and behaviour is above ``upper``: DPPO keeps it both ways."""
        near = torch.ones_like(self.mask)
        for old, new in ((self.proximal, self.behaviour), (self.behaviour, self.proximal)):
            for sign in (1.0, -1.0):
                leaf = new.clone().requires_grad_()
                advantage = sign * self.mask
                loss, _ = verl.compute_policy_loss_dppo_kl(
                    old, leaf, advantage, self.mask, "token-mean", config(upper, upper)
                )
                near *= torch.autograd.grad(loss, leaf)[0] != 0
        return near

    def divergence(self, estimator: str) -> Tensor:
        return verl.kl_penalty(self.current, self.reference, estimator)


def derived(loss: Tensor, leaf: Tensor) -> dict[str, Any]:
    (gradient,) = torch.autograd.grad(loss, leaf)
    return {"loss": loss.item(), "gradient": gradient}


def whole_algorithms(recorder: Recorder, case: Case) -> None:
    x = Columns(case)

    def record(
        name: str, advantage: Tensor, loss: Callable[..., Any], old: Tensor, weight: Tensor | None, aggregation: str,
        settings: ActorConfig, extra: Tensor | float = 0.0,
    ) -> None:  # fmt: skip
        policy_loss, metrics = loss(
            old, x.current, advantage, x.mask, AGGREGATIONS[aggregation], config=settings, rollout_is_weights=weight
        )
        recorder.add(case, name, advantage=advantage, **derived(policy_loss + extra, x.current))
        fractions = {key: metrics.get(f"actor/pg_{key}", 0.0) for key in ("clipfrac", "clipfrac_lower")}
        recorder.add(case, name, **fractions)

    clip = verl.compute_policy_loss_vanilla
    grpo = to_go(worth(case, GRPO), x.mask)[1]
    centred = to_go(worth(case, CENTRED), x.mask)[1]
    rloo = to_go(worth(case, RLOO), x.mask)[1]
    record("grpo", grpo, clip, x.proximal, x.weight(), "token_mean", config())
    record("grpo_behaviour", grpo, clip, x.behaviour, None, "sequence_mean", config(0.2, 0.28, 3.0))
    record("grpo_proximal", grpo, clip, x.proximal, None, "sequence_sum", config(0.1, 0.3, 1.5))
    record("dr_grpo", centred, clip, x.proximal, x.weight(), "constant", config(loss_scale_factor=MAX_LENGTH))
    record("rloo", rloo, verl.compute_policy_loss_reinforce, x.behaviour, x.weight(), "sequence_sum", config())
    record("rloo_clipped", rloo, clip, x.proximal, x.weight(), "sequence_sum", config())
    record("gspo", grpo, verl.compute_policy_loss_gspo, x.proximal, x.weight(), "sequence_mean", config(3e-4, 4e-4))
    record("sapo", grpo, verl.compute_policy_loss_sapo, x.proximal, None, "sequence_mean", config())
    record("cispo", grpo, verl.compute_policy_loss_cispo, x.proximal, x.weight(), "token_mean", config(1.0, 4.0))
    record("icepop", grpo, clip, x.proximal, x.weight("mask"), "token_mean", config())
    is_near = x.is_near(BINARY_KL)
    record("kpop", grpo, clip, x.proximal, x.weight("all") * is_near, "token_mean", config())
    penalised = verl.compute_rewards(torch.tensor(case.token_reward), x.proximal, x.reference, KL_WEIGHT)
    record("reinforce_pp", to_go(penalised, x.mask)[0], clip, x.proximal, x.weight(), "token_mean", config())
    ratio = (x.current.detach() - x.behaviour).exp().clamp(max=10.0)
    divergence = verl.agg_loss(x.divergence("k2") * ratio, x.mask, "token-mean")
    whitened = masked_whiten(centred, x.mask) * x.mask
    record(
        "reinforce_pp_baseline", whitened, clip, x.proximal, x.weight(), "token_mean", config(),
        extra=0.01 * divergence,
    )  # fmt: skip
    ppo, returns = verl.compute_gae_advantage_return(with_what_follows(case, 1.0), x.value, x.mask, 1.0, 0.95)
    record("ppo", ppo * x.mask, clip, x.proximal, x.weight(), "token_mean", config())
    leaf = x.new_value.requires_grad_()
    critic, _ = verl.compute_value_loss(leaf, returns, x.value, x.mask, 0.2)
    recorder.add(case, "critic", **derived(critic, leaf))


# --- pieces --------------------------------------------------------------------------------------


def pieces(recorder: Recorder, case: Case) -> None:
    x = Columns(case)
    for ours, theirs in AGGREGATIONS.items():
        info = {"loss_scale_factor": MAX_LENGTH} if ours == "constant" else {}
        recorder.add(case, f"aggregation/{ours}", loss=verl.agg_loss(x.value, x.mask, theirs, **info).item())
    for estimator in ("k1", "k2", "k3", "k3+"):
        divergence = x.divergence(estimator)
        (gradient,) = torch.autograd.grad(divergence.sum(), x.current)
        recorder.add(case, f"kl/{estimator}", value=divergence.detach(), gradient=gradient)
    for name in WEIGHTS:
        recorder.add(case, f"weight/{name}", value=x.weight(name))
    for name, threshold in REJECTIONS.items():
        kept, _ = compute_rollout_rejection_mask(x.proximal - x.behaviour, x.mask, name, threshold)
        recorder.add(case, f"kept/{name}", value=kept)
    kept, _ = compute_rollout_rejection_mask(x.proximal - x.behaviour, x.mask, "token_k2", REJECTIONS["token_k2"])
    recorder.add(case, "kept_loss", loss=verl.agg_loss(x.value, kept, "token-mean").item())
    for name, (gamma, lam) in {"gae": (0.99, 0.9), "monte_carlo": (0.95, 1.0), "one_step": (0.9, 0.0)}.items():
        rewards = torch.tensor(case.token_reward)
        _, returns = verl.compute_gae_advantage_return(rewards, x.value, x.mask, gamma, lam)
        recorder.add(case, f"finished/{name}", returns=returns)
    recorder.add(case, "by_turn", advantage=turn_advantages(case, 0.95, 0.8))
    steps = x.mask.sum(1)
    by_length = {"alpha": (1 - 1 / (0.3 * steps)).clamp(min=0), "q": 0.5 ** (1 / (steps - 1).clamp(min=1))}
    for name, lam in by_length.items():
        _, returns = verl.compute_gae_advantage_return(with_what_follows(case, 0.99), x.value, x.mask, 0.99, lam)
        recorder.add(case, f"by_length/{name}", advantage=returns - x.value)
    controller = verl.AdaptiveKLController(0.2, target_kl=0.1, horizon=100)
    controller.update(current_kl=abs(case.final_value[0]) / 5, n_steps=10)
    recorder.add(case, "adaptive", weight=controller.value)
    everyone = GRPO(torch.tensor(case.reward), case.group)
    recorder.add(case, "everyone", worth=everyone.tolist())


def main() -> None:
    for name, record in {"verl_algorithms": whole_algorithms, "verl_pieces": pieces}.items():
        recorder = Recorder()
        for case in cases():
            record(recorder, case)
        recorder.write(name, package="verl")


if __name__ == "__main__":
    main()
