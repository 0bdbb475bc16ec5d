"""Makes trl.json: what trl's trainers give, in float64; see trl_stand_ins for how.

Groups are filled up to trl's one size with completions that no reward function could score, which trl leaves out.
trl has no process supervision: a turn's reward is compared with those of all turns of its group as if each were a
sample, and advantages per token go where trl lets subclasses give them. trl's mean over sequences counts empty
completions, so that rows without trained tokens are left out but for ``empty``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from golden_file import Recorder
from ragged_cases import Case, Floats, cases
from torch import Tensor
from trl import DPOTrainer, RewardTrainer, SFTTrainer
from trl.rewards import get_soft_overlong_punishment
from trl_stand_ins import GRPO, RLOO, Model, advantages, batch_of, rollout_trainer, set_up

BETAS = {"sigmoid": 0.1, "ipo": 0.25, "hinge": 0.4}
"""With which each loss has pairs on both sides of its bend."""

OVERLONG = (12, 6)
"""Budget and buffer of dapo's penalty, within the lengths of the cases."""
CORRECTED: dict[str, Any] = {
    "use_vllm": True, "vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 5.0,
}  # fmt: skip
RECOMPUTED: dict[str, Any] = {"num_iterations": 2}
"""With which trl recomputes the log-probs that a step starts from, though no engine drew the tokens."""
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "dapo", **CORRECTED},
    "grpo_proximal": {"loss_type": "grpo", "epsilon_high": 0.28, "delta": 3.0, **RECOMPUTED},
    "grpo_behaviour": {"loss_type": "bnpo", "epsilon": 0.1, **RECOMPUTED},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none", **CORRECTED},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28, **CORRECTED},
    "lite_ppo": {"loss_type": "dapo", "scale_rewards": "batch", **CORRECTED},
    "gspo": {
        "loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4,
        **CORRECTED,
    },
    "sapo": {"loss_type": "sapo", **RECOMPUTED},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0, **CORRECTED},
    "icepop": {
        **CORRECTED, "loss_type": "dapo", "vllm_importance_sampling_mode": "token_mask",
        "vllm_importance_sampling_clip_min": 0.5,
    },
    "sequence_truncate": {**CORRECTED, "loss_type": "dapo", "vllm_importance_sampling_mode": "sequence_truncate"},
    "sequence_mask": {**CORRECTED, "loss_type": "dapo", "vllm_importance_sampling_mode": "sequence_mask"},
    "kl": {"loss_type": "dapo", "beta": 0.1, "use_bias_correction_kl": False},
    "kl_corrected": {"loss_type": "dapo", "beta": 0.1, "use_bias_correction_kl": True, **RECOMPUTED},
}  # fmt: skip
ADVANTAGES = ("grpo", "dr_grpo", "dapo", "lite_ppo")
"""Whose advantages are recorded; all others' are those of grpo."""
OLD = {"grpo_behaviour": "behaviour", "kl_corrected": "behaviour"}


def worth(trainer: Any, case: Case, reward: Floats) -> Floats:
    """What is to come from each trained token, [B, S]: its sample's worth, and its own and later turns'."""
    rows = np.flatnonzero(case.is_trained)
    sample = np.zeros(len(case.group))
    sample[rows] = advantages(trainer, reward[rows], case.group[rows])
    result = case.on_last(sample)
    turns = case.turn_reward.nonzero()
    if len(turns[0]):
        result[turns] += advantages(trainer, case.turn_reward[turns], case.group[turns[0]])
    return np.where(case.mask, np.cumsum(result[:, ::-1], axis=1)[:, ::-1], 0.0)


def derived(loss: Tensor, leaf: Tensor) -> dict[str, Any]:
    (gradient,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    return {"loss": loss.item(), "gradient": gradient}


def policy(recorder: Recorder, case: Case, trainers: dict[str, Any]) -> None:
    for name, trainer in trainers.items():
        reward = case.reward
        if name == "dapo":
            lengths = [[1] * int(n) for n in case.mask.sum(1)]
            reward = reward + np.array(get_soft_overlong_punishment(*OVERLONG)(lengths))
        advantage = worth(trainer, case, reward)
        batch, leaf = batch_of(trainer, case, case.is_trained, OLD.get(name, "proximal"))
        width = batch["completion_mask"].shape[1]
        batch["advantages"] = torch.tensor(advantage[case.is_trained][:, :width])
        if name.startswith("kl"):
            batch["advantages"] *= 0
        recorder.add(case, name, **derived(trainer._compute_loss(trainer.model, batch), leaf))
        if name in ADVANTAGES:
            recorder.add(case, name, advantage=advantage)
        if name == "sequence_mask":
            recorder.add(case, name, is_kept=(batch["importance_sampling_ratio"][:, 0] > 0).double().tolist())
    trainer = trainers["grpo_proximal"]
    advantage = worth(trainer, case, case.reward)
    batch, _ = batch_of(trainer, case, np.ones(len(case.group), dtype=bool))
    batch["advantages"] = torch.tensor(advantage)
    recorder.add(case, "empty", loss=trainer._compute_loss(trainer.model, batch).item())


def rloo(recorder: Recorder, case: Case) -> None:
    """Sequences as single actions, from the current policy, where the clip is idle, and from the proximal one."""
    trainer = rollout_trainer(RLOO, beta=0.0)
    recorder.add(case, "rloo", advantage=worth(trainer, case, case.reward))
    rows = np.flatnonzero(case.is_trained)
    sample = advantages(trainer, case.reward[rows], case.group[rows])
    k1 = np.where(case.mask, case.proximal - case.reference, 0.0).sum(1)[rows]
    penalised = advantages(rollout_trainer(RLOO, beta=0.1), case.reward[rows], case.group[rows], k1)
    recorder.add(case, "rloo_kl", advantage=penalised.tolist())
    mask = torch.tensor(case.mask[rows], dtype=torch.float64)
    leaf = torch.tensor(case.current, requires_grad=True)
    trainer.log_probs = {"current": leaf[torch.tensor(rows)]}
    ids, ones = torch.zeros(len(rows), 1).long(), torch.ones(len(rows), 1)
    for name, old in {"rloo": case.current, "rloo_sequence": case.proximal}.items():
        inputs = {
            "prompt_ids": ids, "prompt_mask": ones, "completion_ids": mask.long(), "completion_mask": mask,
            "old_logps": (torch.tensor(old[rows]) * mask).sum(1), "advantages": torch.tensor(sample),
        }  # fmt: skip
        loss = trainer._compute_loss(trainer.model, inputs)
        recorder.add(case, name, **derived(loss, leaf))


def preferences(recorder: Recorder, case: Case) -> None:
    """Pairs of rows as chosen and rejected side; trl's log-probs lack the first position, a prompt's."""
    rows = torch.tensor(case.pairs.T.reshape(-1))
    mask = torch.tensor(case.mask, dtype=torch.float64)[rows]
    leaf = torch.tensor(case.current, requires_grad=True)
    zeros = torch.zeros_like(mask)
    model = Model(log_probs=leaf[rows] * mask, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())
    with_prompt = torch.nn.functional.pad(mask, (1, 0)).long()
    chosen, rejected = (torch.tensor(case.reference)[rows] * mask).sum(1).chunk(2)
    inputs = {
        "input_ids": torch.zeros_like(with_prompt), "completion_mask": with_prompt, "ref_chosen_logps": chosen,
        "ref_rejected_logps": rejected,
    }  # fmt: skip
    for loss, beta in BETAS.items():
        trainer = set_up(
            DPOTrainer, model=model, ld_alpha=None, precompute_ref_logps=True, use_weighting=False,
            f_divergence_type="reverse_kl", loss_types=[loss], loss_weights=[1.0], beta=beta,
        )  # fmt: skip
        made = derived(trainer._compute_loss(model, inputs, return_outputs=False), leaf)
        noted = {name.removeprefix("rewards/"): values[0] for name, values in trainer._metrics["eval"].items()}
        read = ("accuracies", "margins", "chosen", "rejected")
        recorder.add(case, f"dpo/{loss}", **made, metrics=[noted[name] for name in read])
    score = torch.tensor(case.final_value, requires_grad=True)
    trainer = set_up(RewardTrainer, args=SimpleNamespace(center_rewards_coefficient=None))
    total = trainer.compute_loss(Model(logits=score[rows][:, None]), {})
    noted = {name: values[0] for name, values in trainer._metrics["eval"].items()}
    recorder.add(case, "reward_model", **derived(total, score), metrics=[noted["accuracy"], noted["margin"]])


def imitation(recorder: Recorder, case: Case) -> None:
    mask = torch.tensor(case.mask, dtype=torch.float64)
    leaf = torch.tensor(case.current, requires_grad=True)
    zeros = torch.zeros_like(mask)
    model = Model(log_probs=leaf * mask, label_mask=mask.bool(), entropy=zeros, is_top1=zeros.bool())
    args = SimpleNamespace(loss_type="nll", average_tokens_across_devices=False, max_length=None)
    trainer = set_up(SFTTrainer, args=args, compute_loss_func=None, label_smoother=None)
    inputs = {"input_ids": mask.long(), "labels": mask.long(), "attention_mask": mask.long()}
    recorder.add(case, "sft", **derived(trainer.compute_loss(model, inputs), leaf))


def main() -> None:
    torch.set_default_dtype(torch.float64)
    recorder = Recorder()
    trainers = {name: rollout_trainer(GRPO, **config) for name, config in ALGORITHMS.items()}
    for case in cases():
        policy(recorder, case, trainers)
        rloo(recorder, case)
        preferences(recorder, case)
        imitation(recorder, case)
    recorder.write("trl", package="trl")


if __name__ == "__main__":
    main()
