"""Rewarding: scores, from a pool of processes that can be killed or from the event loop."""

from areal_lit.rewarding.scorer import RewardError, Rewarding, Scorer

__all__ = ["RewardError", "Rewarding", "Scorer"]
