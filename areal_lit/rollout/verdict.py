"""Verdict: whether a complete group goes to training, and if not, for which reason."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from areal_lit.contracts.filter import Filter
from areal_lit.plugins.distributions import origin
from areal_lit.rollout.settings import Rollout
from areal_lit.types import Group, Prompt, Trajectory

VETO_LIMIT_S = 0.005
logger = logging.getLogger(__name__)


class Verdict:
    """Partial-group policy, then filters in order, then the veto hooks.

    Args:
        settings: ``samples_per_group`` and ``partial_groups`` are used.
        hooks: the plugin manager's hooks; ``rollout_admit`` and ``group_ready`` are asked.
    """

    def __init__(self, settings: Rollout, *, filters: Sequence[Filter], hooks: Any) -> None:
        self._settings = settings
        self._filters = [(_snake(type(filter_).__name__), filter_) for filter_ in filters]
        self._hooks = hooks
        self._slow: set[str] = set()

    def admits(self, prompt: Prompt) -> bool:
        """Whether no ``rollout_admit`` hook objects."""
        return self._all_agree("rollout_admit", prompt=prompt)

    def objection(self, group: Group, *, needs_reward: bool) -> str:
        """Why the group is rejected, in a word; empty if it is accepted."""
        lost = {t.sample for t in group.trajectories if is_unscored(t, needs_reward=needs_reward)}
        usable = {t.sample for t in group.trajectories} - lost
        if not usable:
            return "failed"
        if len(usable) < self._settings.samples_per_group and self._settings.partial_groups == "drop":
            return "partial"
        for name, filter_ in self._filters:
            if not _accepts(filter_, group):
                return name
        return "" if self._all_agree("group_ready", group=group) else "group_ready"

    def _all_agree(self, hook: str, **arguments: Any) -> bool:
        caller = getattr(self._hooks, hook)
        implementations = caller.get_hookimpls()
        if not implementations:
            return True
        start = time.perf_counter()
        results = caller(**arguments)
        seconds = time.perf_counter() - start
        if seconds > VETO_LIMIT_S:
            self._warn(hook, seconds, [implementation.plugin_name for implementation in implementations])
        return False not in results

    def _warn(self, hook: str, seconds: float, plugins: list[str]) -> None:
        """Once per plugin. pluggy calls all implementations at once, so several share their time."""
        fresh = sorted(set(plugins) - self._slow)
        if fresh:
            self._slow.update(fresh)
            logger.warning(
                "hook %s took %.1f ms on the event loop, where generation waits for it (limit %g ms), in: %s",
                hook, seconds * 1e3, VETO_LIMIT_S * 1e3, ", ".join(fresh),
            )  # fmt: skip


def is_unscored(trajectory: Trajectory, *, needs_reward: bool) -> bool:
    """Whether a reward was wanted and could not be had."""
    return bool(trajectory.unscored) or (needs_reward and trajectory.reward is None)


def _accepts(filter_: Filter, group: Group) -> bool:
    try:
        accepted = filter_.accept(group)
        if not isinstance(accepted, bool | np.bool_):
            raise TypeError(f"accept must return True or False, got {accepted!r:.80}")
        return bool(accepted)
    # a filter is any code: what it raises ends the run, with the filter's name
    except Exception as error:
        prompt = group.prompt
        raise RuntimeError(
            f"filter {origin(filter_)} raised {type(error).__name__}: {error}, on the group of row {prompt.row} of "
            f"source {prompt.source!r}"
        ) from error


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
