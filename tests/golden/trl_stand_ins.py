"""Trainers of trl that were never set up, on stand-ins for models, engines and rewards: their own methods compute."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from ragged_cases import MAX_LENGTH, Bools, Case, Floats, Ints
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer, RLOOTrainer


class Model:
    """Gives prescribed outputs; in evaluation mode, where nothing is accumulated."""

    training = False
    is_gradient_checkpointing = False

    def __init__(self, **outputs: Tensor) -> None:
        self.outputs = outputs

    def __call__(self, **inputs: Any) -> SimpleNamespace:
        return SimpleNamespace(**self.outputs)


class Accelerator:
    """Of one process."""

    device = "cpu"
    num_processes = 1
    process_index = 0
    parallelism_config = None

    def gather(self, x: Any) -> Any:
        return x

    gather_for_metrics = gather

    def reduce(self, x: Any, reduction: str) -> Any:
        return x


def set_up(cls: type, **settings: Any) -> Any:
    """A trainer with only what its methods read."""
    trainer = object.__new__(cls)
    noted: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    trainer.__dict__ |= {
        "model": Model(), "accelerator": Accelerator(), "_metrics": noted, "_total_train_tokens": 0,
        "aux_loss_enabled": False, **settings,
    }  # fmt: skip
    return trainer


class Given:
    """What a rollout trainer asks of models, engines and reward functions."""

    completions: tuple[list[list[int]], list[list[int]], list[list[float]]]
    rewards: Tensor
    log_probs: dict[str, Tensor]

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        tokens, trained, behaviour = self.completions
        ids = [[1]] * len(tokens)
        return (
            (ids, tokens, trained, tokens, behaviour, {}, None, None)
            if isinstance(self, GRPO)
            else (ids, tokens, tokens)
        )

    def _calculate_rewards(self, *args: Any) -> Tensor:
        return self.rewards[:, None]

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **options: Any) -> tuple[Any, ...]:
        is_current = options.get("compute_entropy", False)
        said = self.log_probs["current" if is_current else "reference" if model is self.ref_model else "proximal"]
        return said, torch.zeros_like(said), None


class GRPO(Given, GRPOTrainer): ...


class RLOO(Given, RLOOTrainer): ...


READ = (
    "loss_type", "beta", "scale_rewards", "importance_sampling_level", "off_policy_mask_threshold",
    "mask_truncated_completions", "top_entropy_quantile", "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min",
    "multi_objective_aggregation", "num_iterations",
)  # fmt: skip


def rollout_trainer(cls: type, **config: Any) -> Any:
    """A GRPO or RLOO trainer with these settings of GRPOConfig; with ``use_vllm`` it corrects for the engine."""
    use_vllm = config.pop("use_vllm", False)
    args = GRPOConfig(output_dir="unused", report_to=[], use_cpu=True, bf16=False, **config)
    return set_up(
        cls, args=args, use_vllm=use_vllm, epsilon_low=args.epsilon,
        epsilon_high=args.epsilon if args.epsilon_high is None else args.epsilon_high,
        max_completion_length=MAX_LENGTH, ref_model=Model(), reward_weights=torch.ones(1), reward_func_names=["given"],
        normalize_advantages=False, reward_clip_range=None, _entropy_bonus_enabled=False, log_multimodal=False,
        environment_factories=None, environments=None, tools=None, pad_to_multiple_of=None,
        _tokenizer=SimpleNamespace(pad_token_id=0), _pending_extra_logs={}, _pending_metrics={},
        _logs=defaultdict(list, rewards=defaultdict(list), extra={}), **{name: getattr(args, name) for name in READ},
    )  # fmt: skip


def advantages(trainer: Any, value: Floats, group: Ints, divergence: Floats | float = 0.0) -> Floats:
    """The trainer's advantages of numbers that are compared within groups, [N].

    Args:
        divergence: of each from the reference, summed over its tokens.
    """
    rows = in_groups(group)
    trainer.rewards = torch.tensor(np.where(rows >= 0, value[rows], np.nan))
    trainer.completions = [[1]] * len(rows), [[1]] * len(rows), [[0.0]] * len(rows)
    reference = -np.broadcast_to(divergence, value.shape)[rows]
    trainer.log_probs = {"proximal": torch.zeros(len(rows), 1), "reference": torch.tensor(reference)[:, None]}
    made = generated(trainer, len(rows), int((np.sort(group)[:, None] == np.unique(group)).sum(0).max()))["advantages"]
    result = np.empty(len(value))
    result[rows[rows >= 0]] = made[rows >= 0].numpy()
    return result


def in_groups(group: Ints) -> Ints:
    """Indices group by group, each filled up with -1 to the size of the largest."""
    members = [np.flatnonzero(group == each) for each in np.unique(group)]
    size = max(map(len, members))
    return np.concatenate([np.pad(rows, (0, size - len(rows)), constant_values=-1) for rows in members])


def generated(trainer: Any, size: int, num_generations: int) -> dict[str, Any]:
    trainer.num_generations_eval = num_generations
    return trainer._generate_and_score_completions([{"prompt": "x"}] * size)


def batch_of(trainer: Any, case: Case, rows: Bools, old: str = "proximal") -> tuple[dict[str, Any], Tensor]:
    """What the trainer makes of these rows of a case before its loss, and the current log-probs, a leaf [B, S].

    Args:
        old: the policy that the trainer takes for the one it starts the step from.
    """
    lengths = case.length[rows]
    width = int(lengths.max())
    leaf = torch.tensor(case.current, requires_grad=True)
    said = {"proximal": getattr(case, old), "reference": case.reference}
    trainer.log_probs = {name: torch.tensor(x[rows][:, :width]) for name, x in said.items()}
    trainer.log_probs["current"] = leaf[torch.tensor(rows)][:, :width]
    trainer.completions = (
        [[1] * int(n) for n in lengths],
        [row[:n].astype(int).tolist() for row, n in zip(case.mask[rows], lengths, strict=True)],
        [row[:n].tolist() for row, n in zip(case.behaviour[rows], lengths, strict=True)],
    )
    trainer.rewards = torch.zeros(len(lengths))
    return generated(trainer, len(lengths), len(lengths)), leaf
