"""Makes trl_preferences.json: what trl's DPO and reward trainers compute on ragged pairs.

    pip install trl   # in a virtualenv of its own
    python make_trl_preferences.py

Float64. The trainers' own loss methods run on stubs of a model that give prescribed log-probs or scores; nothing is
loaded or trained. Gradients are with respect to those of the sides.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from trl import DPOTrainer, RewardTrainer

NUM_PAIRS = 200
LONGEST_PROMPT = 4
LONGEST = 8
BETAS = {"sigmoid": 0.1, "ipo": 0.25, "hinge": 0.4}
"""With which each loss has pairs on both sides of its bend."""


class Model:
    """Gives prescribed outputs; in evaluation mode, on the CPU."""

    training = False

    def __init__(self, **outputs: Tensor) -> None:
        self.outputs = outputs

    def __call__(self, **inputs: Any) -> SimpleNamespace:
        return SimpleNamespace(**self.outputs)


def trainer(cls: type, model: Model, **settings: Any) -> Any:
    """One that was never set up: only what its loss method reads."""
    made = object.__new__(cls)
    accelerator = SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x)
    noted: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    made.__dict__ |= {
        "model": model,
        "accelerator": accelerator,
        "_metrics": noted,
        "_total_train_tokens": 0,
        **settings,
    }
    return made


def dpo(sides: list[dict[str, Any]], loss: str) -> dict[str, Any]:
    """trl's loss, its gradient and metrics; sides are all chosen ones, then all rejected ones."""
    width = max(len(side["mask"]) for side in sides)
    mask, current, reference = (_padded(sides, name, width) for name in ("mask", "current", "reference"))
    shifted = mask[:, 1:]
    leaf = (current[:, 1:] * shifted).requires_grad_()
    ref_chosen, ref_rejected = (reference * mask).sum(1).chunk(2)
    zeros = torch.zeros_like(leaf)
    model = Model(log_probs=leaf, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())
    made = trainer(
        DPOTrainer, model, aux_loss_enabled=False, ld_alpha=None, precompute_ref_logps=True, use_weighting=False,
        f_divergence_type="reverse_kl", loss_types=[loss], loss_weights=[1.0], beta=BETAS[loss],
    )  # fmt: skip
    inputs = {
        "input_ids": torch.zeros_like(mask, dtype=torch.long), "completion_mask": mask.long(),
        "ref_chosen_logps": ref_chosen, "ref_rejected_logps": ref_rejected,
    }  # fmt: skip
    total = made._compute_loss(model, inputs, return_outputs=False)
    (gradient,) = torch.autograd.grad(total, leaf)
    noted = {name.removeprefix("rewards/"): values[0] for name, values in made._metrics["eval"].items()}
    metrics = {name: noted[name] for name in ("accuracies", "margins", "chosen", "rejected")}
    # one number a side: every token of a side has the same slope
    slopes = (gradient * shifted).sum(1) / shifted.sum(1)
    return {"beta": BETAS[loss], "loss": total.item(), "gradient": slopes.tolist(), "metrics": metrics}


def reward_model(scores: list[float]) -> dict[str, Any]:
    leaf = torch.tensor(scores, dtype=torch.float64).requires_grad_()
    model = Model(logits=leaf[:, None])
    made = trainer(RewardTrainer, model, args=SimpleNamespace(center_rewards_coefficient=None))
    total = made.compute_loss(model, {})
    (gradient,) = torch.autograd.grad(total, leaf)
    noted = {name: values[0] for name, values in made._metrics["eval"].items()}
    return {
        "loss": total.item(), "gradient": gradient.tolist(),
        "metrics": {"accuracies": noted["accuracy"], "margins": noted["margin"]},
    }  # fmt: skip


def _padded(sides: list[dict[str, Any]], name: str, width: int) -> Tensor:
    rows = [side[name] + [0.0] * (width - len(side[name])) for side in sides]
    return torch.tensor(rows, dtype=torch.float64)


def draw(rng: np.random.Generator) -> dict[str, Any]:
    """A pair of sides: a prompt of their own length, and log-probs around a reference that is not far."""
    start = int(rng.integers(1, LONGEST_PROMPT + 1))
    return {name: _side(rng, start) for name in ("chosen", "rejected")}


def _side(rng: np.random.Generator, start: int) -> dict[str, Any]:
    n = int(rng.integers(1, LONGEST + 1))
    reference = rng.normal(-2.0, 0.8, n)
    current = reference + rng.normal(rng.normal(0.0, 1.0), 0.5, n)
    return {
        "mask": [0] * start + [1] * n,
        "current": [0.0] * start + np.round(current, 3).tolist(),
        "reference": [0.0] * start + np.round(reference, 3).tolist(),
        "score": round(float(rng.normal()), 3),
    }


def main() -> None:
    rng = np.random.default_rng(0)
    pairs = [draw(rng) for _ in range(NUM_PAIRS)]
    sides = [pair[name] for name in ("chosen", "rejected") for pair in pairs]
    made = {
        "package": "trl",
        "version": importlib.metadata.version("trl"),
        "dpo": {loss: dpo(sides, loss) for loss in BETAS},
        "reward_model": reward_model([side["score"] for side in sides]),
        "pairs": pairs,
    }
    text = json.dumps(made, separators=(",", ":")).replace('{"chosen":{', '\n{"chosen":{')
    Path(__file__).with_name("trl_preferences.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
