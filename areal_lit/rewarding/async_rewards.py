"""AsyncRewards: rewards that are awaited on the event loop, such as services asked over the network."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict

from areal_lit.cancellation import is_cancelled
from areal_lit.contracts.reward import Reward
from areal_lit.rewarding.calls import Outcome, RewardError, describe, judge_of
from areal_lit.rewarding.metrics import RewardCounters
from areal_lit.rewarding.settings import Rewarding
from areal_lit.types import Trajectory


class AsyncRewards:
    """Awaits calls of ``async def score``, each within its time, and tries those again that fail.

    Args:
        settings: ``timeout_s``, ``max_attempts`` and ``max_kills_in_row`` are used.
    """

    def __init__(self, settings: Rewarding, counters: RewardCounters) -> None:
        self._settings = settings
        self._counters = counters
        self._hung_in_row: defaultdict[str, int] = defaultdict(int)

    async def score(self, key: str, reward: Reward, trajectory: Trajectory) -> Outcome:
        """What came of it in the end. Raises RewardError for a reward that does nothing but hang."""
        for attempt in range(1, self._settings.max_attempts + 1):
            if attempt > 1:
                self._counters.add_retry()
            begun = time.monotonic()
            outcome = await self._call(reward, trajectory)
            self._note_hung(key, outcome)
            self._counters.add_calls(1, time.monotonic() - begun)
            if not outcome.kind:
                break
        return outcome

    async def _call(self, reward: Reward, trajectory: Trajectory) -> Outcome:
        timeout = asyncio.timeout(self._settings.timeout_s)
        try:
            async with timeout:
                score = await reward.score(trajectory)  # type: ignore[misc]
            return judge_of(trajectory, score)
        # Rewards are the user's code: whatever they raise, and what was cancelled that they awaited, leaves this call
        # unscored and counted.
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if is_cancelled():
                raise
            if timeout.expired():
                return Outcome(kind="timeout", reason=f"no result within {self._settings.timeout_s} s")
            return Outcome(kind="error", reason=describe(error))

    def _note_hung(self, key: str, outcome: Outcome) -> None:
        self._hung_in_row[key] = self._hung_in_row[key] + 1 if outcome.kind == "timeout" else 0
        if self._hung_in_row[key] >= self._settings.max_kills_in_row:
            raise RewardError(
                f"reward {key!r} has hung {self._hung_in_row[key]} times in a row ({outcome.reason}); mend it, or "
                "raise rewarding.timeout_s or rewarding.max_kills_in_row"
            )
