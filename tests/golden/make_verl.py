"""Makes verl_algorithms.json and verl_pieces.json: verl's losses of its own advantages, and its pieces; float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from golden_file import Recorder
from ragged_cases import MAX_LENGTH, Case, cases
from torch import Tensor
from verl.trainer.ppo import core_algos as verl
from verl.trainer.ppo.rollout_corr_helper import (
    compute_rollout_correction_and_rejection_mask,
    compute_rollout_correction_weights,
    compute_rollout_rejection_mask,
)
from verl.utils.torch_functional import masked_whiten
from verl.workers.config import ActorConfig
from verl_advantages import CENTRED, GRPO, RLOO, to_go, turn_advantages, with_what_follows, worth

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
WEIGHT_CAP = 1.5
"""Of tokens that a rejection keeps."""
KL_WEIGHT = 0.25
"""In the reward; large enough that the 1e-8 in the root of verl's whitening does not show where rewards are equal."""


def config(low: float = 0.2, high: float = 0.2, dual: float = UNCLIPPED, **info: Any) -> ActorConfig:
    return ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=low, clip_ratio_high=high,
        clip_ratio_c=dual, global_batch_info=info,
    )  # fmt: skip


CONFIG = config()


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

    def weight(self, name: str) -> Tensor:
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


class Losses:
    """Records verl's losses of a case and their gradients; by default grpo's, around the proximal policy."""

    def __init__(self, recorder: Recorder, case: Case) -> None:
        self.recorder, self.case, self.x = recorder, case, Columns(case)
        self.clamped = self.x.weight("clamp")

    def record(
        self, name: str, advantage: Tensor, loss: Callable[..., Any] = verl.compute_policy_loss_vanilla, *,
        old: Tensor | None = None, weight: Tensor | Literal["clamped"] | None = "clamped",
        aggregation: str = "token_mean", settings: ActorConfig = CONFIG, extra: Tensor | float = 0.0,
    ) -> None:  # fmt: skip
        x = self.x
        total, metrics = loss(
            x.proximal if old is None else old, x.current, advantage, x.mask, AGGREGATIONS[aggregation],
            config=settings, rollout_is_weights=self.clamped if isinstance(weight, str) else weight,
        )  # fmt: skip
        fractions = {key: metrics.get(f"actor/pg_{key}", 0.0) for key in ("clipfrac", "clipfrac_lower")}
        self.recorder.add(self.case, name, advantage=advantage, **derived(total + extra, x.current), **fractions)


def algorithms(recorder: Recorder, case: Case) -> None:
    losses = Losses(recorder, case)
    x = losses.x
    centred = to_go(worth(case, CENTRED), x.mask)[1]
    rloo = to_go(worth(case, RLOO), x.mask)[1]
    of_grpo(losses, to_go(worth(case, GRPO), x.mask)[1])
    losses.record("dr_grpo", centred, aggregation="constant", settings=config(loss_scale_factor=MAX_LENGTH))
    losses.record("rloo", rloo, verl.compute_policy_loss_reinforce, aggregation="sequence_sum")
    losses.record("rloo_clipped", rloo, aggregation="sequence_sum")
    penalised = verl.compute_rewards(torch.tensor(case.token_reward), x.proximal, x.reference, KL_WEIGHT)
    losses.record("reinforce_pp", to_go(penalised, x.mask)[0])
    ratio = (x.current.detach() - x.behaviour).exp().clamp(max=10.0)
    divergence = verl.agg_loss(x.divergence("k2") * ratio, x.mask, "token-mean")
    losses.record("reinforce_pp_baseline", masked_whiten(centred, x.mask) * x.mask, extra=0.01 * divergence)
    ppo, returns = verl.compute_gae_advantage_return(with_what_follows(case, 1.0), x.value, x.mask, 1.0, 0.95)
    losses.record("ppo", ppo * x.mask)
    leaf = x.new_value.requires_grad_()
    critic, _ = verl.compute_value_loss(leaf, returns, x.value, x.mask, 0.2)
    recorder.add(case, "critic", **derived(critic, leaf))


def of_grpo(losses: Losses, advantage: Tensor) -> None:
    """What differs from grpo in its loss only."""
    x = losses.x
    losses.record("grpo", advantage)
    losses.record(
        "grpo_behaviour", advantage, old=x.behaviour, weight=None, aggregation="sequence_mean",
        settings=config(0.2, 0.28, 3.0),
    )  # fmt: skip
    losses.record(
        "grpo_proximal", advantage, weight=None, aggregation="sequence_sum", settings=config(0.1, 0.3, 1.5)
    )  # fmt: skip
    losses.record(
        "gspo", advantage, verl.compute_policy_loss_gspo, aggregation="sequence_mean", settings=config(3e-4, 4e-4)
    )  # fmt: skip
    losses.record("sapo", advantage, verl.compute_policy_loss_sapo, weight=None, aggregation="sequence_mean")
    losses.record("cispo", advantage, verl.compute_policy_loss_cispo, settings=config(1.0, 4.0))
    losses.record("icepop", advantage, weight=x.weight("mask"))
    losses.record("kpop", advantage, weight=x.weight("all") * x.is_near(BINARY_KL))


# --- pieces --------------------------------------------------------------------------------------


def pieces(recorder: Recorder, case: Case) -> None:
    for record in (terms, corrections, returns):
        record(recorder, case)
    controller = verl.AdaptiveKLController(0.2, target_kl=0.1, horizon=100)
    controller.update(current_kl=abs(case.final_value[0]) / 5, n_steps=10)
    recorder.add(case, "adaptive", weight=controller.value)
    recorder.add(case, "everyone", worth=GRPO(torch.tensor(case.reward), case.group))


def terms(recorder: Recorder, case: Case) -> None:
    """Aggregations and divergences."""
    x = Columns(case)
    for ours, theirs in AGGREGATIONS.items():
        info = {"loss_scale_factor": MAX_LENGTH} if ours == "constant" else {}
        recorder.add(case, f"aggregation/{ours}", loss=verl.agg_loss(x.value, x.mask, theirs, **info))
    for estimator in ("k1", "k2", "k3", "k3+"):
        divergence = x.divergence(estimator)
        (gradient,) = torch.autograd.grad(divergence.sum(), x.current)
        recorder.add(case, f"kl/{estimator}", value=divergence.detach(), gradient=gradient)


def corrections(recorder: Recorder, case: Case) -> None:
    """Off-policy weights, what rejection keeps, the same with a cap, and the mean over what one of them keeps."""
    x = Columns(case)
    for name in WEIGHTS:
        recorder.add(case, f"weight/{name}", value=x.weight(name))
    for name, threshold in REJECTIONS.items():
        kept, _ = compute_rollout_rejection_mask(x.proximal - x.behaviour, x.mask, name, threshold)
        recorder.add(case, f"kept/{name}", value=kept)
        weights, kept, _ = compute_rollout_correction_and_rejection_mask(
            x.proximal, x.behaviour, x.mask, rollout_is="token", rollout_is_threshold=WEIGHT_CAP, rollout_rs=name,
            rollout_rs_threshold=threshold,
        )  # fmt: skip
        recorder.add(case, f"capped/{name}", value=weights.batch["rollout_is_weights"] * kept)
        if name == "token_k2":
            recorder.add(case, "kept_loss", loss=verl.agg_loss(x.value, kept, "token-mean"))


def returns(recorder: Recorder, case: Case) -> None:
    """GAE of finished and truncated sequences, by turn, and with a lambda of the length."""
    x = Columns(case)
    for name, (gamma, lam) in {"gae": (0.99, 0.9), "monte_carlo": (0.95, 1.0), "one_step": (0.9, 0.0)}.items():
        rewards = torch.tensor(case.token_reward)
        _, finished = verl.compute_gae_advantage_return(rewards, x.value, x.mask, gamma, lam)
        recorder.add(case, f"finished/{name}", returns=finished)
    recorder.add(case, "by_turn", advantage=turn_advantages(case, 0.95, 0.8))
    steps = x.mask.sum(1)
    by_length = {"alpha": (1 - 1 / (0.3 * steps)).clamp(min=0), "q": 0.5 ** (1 / (steps - 1).clamp(min=1))}
    for name, lam in by_length.items():
        _, made = verl.compute_gae_advantage_return(with_what_follows(case, 0.99), x.value, x.mask, 0.99, lam)
        recorder.add(case, f"by_length/{name}", advantage=made - x.value)


def main() -> None:
    for name, record in {"verl_algorithms": algorithms, "verl_pieces": pieces}.items():
        recorder = Recorder()
        for case in cases():
            record(recorder, case)
        recorder.write(name, package="verl")


if __name__ == "__main__":
    main()
