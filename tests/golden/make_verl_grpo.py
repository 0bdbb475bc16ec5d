"""Makes verl_grpo.json: GRPO advantages, clipped losses and their gradients as verl computes them.

    pip install --no-deps verl   # in a virtualenv of its own, with torch and what its core_algos imports
    python make_verl_grpo.py

Random ragged batches in float64. No group has one member: there verl keeps the raw reward, areal-lit gives 0.
"""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, compute_policy_loss_vanilla

AGGREGATIONS = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "constant": "seq-mean-token-sum-norm",
}
NUM_CASES = 12


def main() -> None:
    cases = [case(np.random.default_rng(seed), seed) for seed in range(NUM_CASES)]
    text = json.dumps({"package": "verl", "version": importlib.metadata.version("verl"), "cases": cases})
    Path(__file__).with_name("verl_grpo.json").write_text(text.replace('{"group"', '\n{"group"') + "\n")


def case(rng: np.random.Generator, seed: int) -> dict[str, Any]:
    group = [g for g in range(3) for _ in range(int(rng.integers(2, 5)))]
    rng.shuffle(group)
    size, longest = len(group), 6
    length = rng.integers(1, longest + 1, size)
    mask = np.arange(longest)[None, :] < length[:, None]
    mask[0, : length[0] - 1] &= rng.random(length[0] - 1) > 0.3
    reward = np.round(rng.normal(size=size), 2)
    reward[[i for i in range(size) if group[i] == 0]] = 0.25
    behaviour, proximal, current = (np.round(rng.normal(-1.5, 0.6, mask.shape), 3) for _ in range(3))
    clips = {"clip_low": 0.2, "clip_high": [0.2, 0.28][seed % 2], "clip_dual": 3.0}
    given = {
        "group": group,
        "reward": reward.tolist(),
        "mask": mask.astype(int).tolist(),
        "behaviour": behaviour.tolist(),
        "proximal": proximal.tolist(),
        "current": current.tolist(),
        **clips,
        "max_length": longest,
    }
    return {**given, **expected(given)}


def expected(given: dict[str, Any]) -> dict[str, Any]:
    mask = torch.tensor(given["mask"], dtype=torch.float64)
    token_reward = torch.zeros_like(mask)
    token_reward[:, 0] = torch.tensor(given["reward"], dtype=torch.float64)
    index = np.array(given["group"])
    advantage = {}
    for name, by_std in {"advantage": True, "advantage_without_std": False}.items():
        # over a mask of ones, so that a sample's advantage shows at its first token
        full, _ = compute_grpo_outcome_advantage(
            token_reward.clone(), torch.ones_like(mask), index, norm_adv_by_std_in_grpo=by_std
        )
        advantage[name] = full[:, 0]
    behaviour, proximal = (torch.tensor(given[k], dtype=torch.float64) for k in ("behaviour", "proximal"))
    weight = (proximal - behaviour).exp().clamp(max=5.0)
    config = OmegaConf.create(
        {
            "clip_ratio": 0.2,
            "clip_ratio_low": given["clip_low"],
            "clip_ratio_high": given["clip_high"],
            "clip_ratio_c": given["clip_dual"],
            "global_batch_info": {},
        }
    )
    losses = {}
    for ours, theirs in AGGREGATIONS.items():
        for name, old, off_policy in (("behaviour", behaviour, None), ("decoupled", proximal, weight)):
            current = torch.tensor(given["current"], dtype=torch.float64, requires_grad=True)
            spread = advantage["advantage"][:, None] * mask
            loss, metrics = compute_policy_loss_vanilla(old, current, spread, mask, theirs, config, off_policy)
            (gradient,) = torch.autograd.grad(loss, current)
            losses[f"{ours}/{name}"] = {
                "loss": loss.item(),
                "gradient": [[round(x, 10) for x in row] for row in gradient.tolist()],
                "clipped": metrics["actor/pg_clipfrac"],
                "clipped_dual": metrics["actor/pg_clipfrac_lower"],
            }
    return {**{name: x.tolist() for name, x in advantage.items()}, "losses": losses}


if __name__ == "__main__":
    main()
