"""Constructors of all policy-gradient algorithms by name, for the tests that go through them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from published_settings import OVERLONG

from areal_lit_algorithms.cispo import CISPO
from areal_lit_algorithms.dapo import DAPO
from areal_lit_algorithms.dr_grpo import DrGRPO
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.gspo import GSPO
from areal_lit_algorithms.icepop import IcePop
from areal_lit_algorithms.kpop import KPop
from areal_lit_algorithms.lite_ppo import LitePPO
from areal_lit_algorithms.m2po import M2PO
from areal_lit_algorithms.policy_gradient import PolicyGradient
from areal_lit_algorithms.ppo import PPO
from areal_lit_algorithms.process_reward import ProcessReward
from areal_lit_algorithms.reinforce_pp import ReinforcePP
from areal_lit_algorithms.reinforce_pp_baseline import ReinforcePPBaseline
from areal_lit_algorithms.rloo import RLOO
from areal_lit_algorithms.sapo import SAPO

FAMILY: dict[str, Callable[..., PolicyGradient]] = {
    "grpo": GRPO,
    "dr_grpo": partial(DrGRPO, max_length=12),
    "dapo": partial(DAPO, reward_shaping=OVERLONG),
    "lite_ppo": LitePPO,
    "rloo": RLOO,
    "rloo_clipped": partial(RLOO, clipped=True),
    "reinforce_pp": ReinforcePP,
    "reinforce_pp_baseline": ReinforcePPBaseline,
    "gspo": GSPO,
    "sapo": SAPO,
    "cispo": CISPO,
    "m2po": M2PO,
    "icepop": IcePop,
    "kpop": KPop,
    "ppo": PPO,
    "process_reward": partial(ProcessReward, outcome_weight=0.5),
}
"""With what must be given, as ``algorithm_papers`` has it."""
