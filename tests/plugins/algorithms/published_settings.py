"""What each algorithm is by its paper, or by ours where its docstring says so: options as constructors take them.

Spelled out by themselves: the defaults of constructors are compared with them, not taken from them.
"""

from __future__ import annotations

from typing import Any

from areal_lit_algorithms.pieces.normalisation import Normaliser
from areal_lit_algorithms.pieces.rejection import Rejection
from areal_lit_algorithms.pieces.shaping import Overlong, Shaping

GROUP = Normaliser(mean_level="group", std_level="group", leave_one_out=False, unbiased_std=True, eps=1e-6)
CENTRED = Normaliser(mean_level="group", std_level="none")
OTHERS = Normaliser(mean_level="group", std_level="none", leave_one_out=True)
WHITENED = Normaliser(mean_level="batch", std_level="batch", unbiased_std=True, eps=1e-6)
AS_IT_IS = Normaliser(mean_level="none", std_level="none")
TRUNCATED_WEIGHT = Rejection(level="token", action="clamp", metric="ratio", lower=None, upper=5.0)
COMMON: dict[str, Any] = {
    "term": "clip", "reward_shaping": Shaping(), "reward_norm": GROUP, "advantage_norm": None, "turn_discount": 1.0,
    "decoupled": True, "old": "proximal", "proximal": "recompute", "rejection": TRUNCATED_WEIGHT,
    "clip_low": 0.2, "clip_high": 0.2, "clip_dual": None, "aggregation": "token_mean", "max_length": None,
    "kl_weight": 0.0, "kl_in": "loss", "kl_estimator": "k2", "entropy_weight": 0.0, "outcome_weight": 1.0,
    "step_norm": None,
}  # fmt: skip
"""What holds unless an algorithm says otherwise."""

OVERLONG = Shaping(overlong=Overlong(max_length=12, buffer=6, factor=1.0))

PUBLISHED: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"reward_norm": CENTRED, "aggregation": "constant", "max_length": 12},
    "dapo": {"clip_high": 0.28, "reward_shaping": OVERLONG},
    "lite_ppo": {"reward_norm": Normaliser(mean_level="group", std_level="batch")},
    "rloo": {"term": "log_prob", "aggregation": "sequence_sum", "reward_norm": OTHERS},
    "rloo_clipped": {"aggregation": "sequence_sum", "reward_norm": OTHERS},
    "reinforce_pp": {
        "reward_norm": AS_IT_IS, "advantage_norm": WHITENED, "gamma": 1.0, "kl_weight": 0.01, "kl_in": "reward",
        "kl_estimator": "k1",
    },
    "reinforce_pp_baseline": {"reward_norm": CENTRED, "advantage_norm": WHITENED, "kl_weight": 0.01},
    "gspo": {"term": "sequence_clip", "clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "sequence_mean"},
    "sapo": {"term": "gate", "decoupled": False, "tau_pos": 1.0, "tau_neg": 1.05, "aggregation": "sequence_mean"},
    "cispo": {"term": "weight", "clip_low": 1.0, "clip_high": 4.0},
    "m2po": {
        "term": "second_moment", "m2_threshold": 0.04, "among": "pushed_on", "decoupled": False, "old": "behaviour",
        "rejection": None,
    },
    "icepop": {"rejection": Rejection(action="mask", metric="ratio", lower=0.5, upper=5.0)},
    "kpop": {"rejection": Rejection(action="mask", metric="binary_kl", lower=None, upper=2.0)},
    "ppo": {
        "reward_norm": AS_IT_IS, "advantage_norm": WHITENED, "gamma": 1.0, "lam": 0.95, "critic_lam": None,
        "step_level": "token", "value_clip": 0.2, "value_loss": "squared",
    },
    "process_reward": {"outcome_weight": 0.5, "step_norm": GROUP},
}  # fmt: skip
