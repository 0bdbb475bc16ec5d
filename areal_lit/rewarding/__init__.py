"""Rewarding: scores, from a pool of processes that can be killed or from the event loop.

    Scorer ──def score──▶ RewardPool ──▶ Slot ──pipe──▶ worker, within its keeper ──▶ call, judge
       │                      clock ◀──calls begun──────────┘
       └──async def score──▶ AsyncRewards ──▶ judge
"""

from areal_lit.rewarding.calls import Outcome, RewardError, judge
from areal_lit.rewarding.processes import check_travels
from areal_lit.rewarding.scorer import Scorer
from areal_lit.rewarding.settings import Rewarding

__all__ = ["Outcome", "RewardError", "Rewarding", "Scorer", "check_travels", "judge"]
