"""Rewarding: scores, from a pool of processes that can be killed or from the event loop.

    Scorer ──def score──▶ RewardPool ──▶ Slot ──pipe──▶ worker, within its keeper ──▶ call, judge
       │                                  ▲                     │
       │                                  └──── calls begun ────┘
       └──async def score──▶ AsyncRewards ──▶ judge

How many calls a worker has begun says how long it is in one, and which to blame when it hangs or dies.
"""

from areal_lit.rewarding.calls import Outcome, RewardError, judge
from areal_lit.rewarding.processes import check_travels
from areal_lit.rewarding.scorer import Scorer
from areal_lit.rewarding.settings import Rewarding

__all__ = ["Outcome", "RewardError", "Rewarding", "Scorer", "check_travels", "judge"]
