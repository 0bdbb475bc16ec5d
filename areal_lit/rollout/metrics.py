"""What rollouts report: counters of the event loop, and numbers of the groups a step consumed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from areal_lit.rollout.groups import FinishedGroup
from areal_lit.types import Group, Metric


class RolloutCounters:
    """Events since the last ``take``; only touched on the event loop."""

    def __init__(self) -> None:
        self.rejected: Counter[str] = Counter()
        self.num_finished = 0
        self.num_retries = 0
        self.num_failed = 0
        self.num_dropped = 0
        self.num_stale_kept = 0
        self.budgets: list[int] = []
        """``max_new_tokens`` of each consumed group, during a warm-up of lengths."""

    def add(self, finished: FinishedGroup) -> None:
        """A group is complete."""
        self.num_finished += 1
        self.num_retries += finished.num_retries
        self.num_failed += len(finished.failures)
        self.num_dropped += finished.num_dropped

    def take(self, *, running: int, ready: int, budget_used: float) -> list[Metric]:
        """Metrics since the last call; the counters start again."""
        sums = {
            "rollout/groups_finished": self.num_finished,
            "rollout/retries": self.num_retries,
            "rollout/failed_episodes": self.num_failed,
            "rollout/dropped_episodes": self.num_dropped,
            "rollout/stale_kept": self.num_stale_kept,
            "rollout/rejected": self.rejected.total(),
            **{f"rollout/rejected/{reason}": count for reason, count in sorted(self.rejected.items())},
        }
        metrics = [Metric(name=name, sum=float(value), reduction="sum") for name, value in sums.items()]
        if self.budgets:
            metrics.append(Metric(name="rollout/max_new_tokens", sum=sum(self.budgets), count=len(self.budgets)))
        self.__init__()  # type: ignore[misc]
        levels = {"running": running, "ready": ready, "failure_budget_used": budget_used}
        return [*metrics, *(Metric(name=f"rollout/{name}", sum=value) for name, value in levels.items())]


def consumed_metrics(groups: Sequence[Group], step: int, *, by_source: bool) -> list[Metric]:
    """Numbers of the groups that ``step`` trains on.

    ``rollout/staleness`` is the mean over generated tokens; half of them are at most ``_median`` old, 95% at most
    ``_p95``; ``rollout/reward`` is the mean over scored trajectories;
    ``rollout/sampled_entropy`` is the mean of -log-prob over generated tokens, in nats: an unbiased estimate of the
    entropy of the policy that drew them, for nothing. ``rollout/prompt_tokens`` counts what was not generated.
    ``rollout/equal_rewards`` is the share of groups whose rewards are all the same: they give no group-relative signal.

    Args:
        by_source: also ``rollout/SOURCE/reward`` and ``rollout/SOURCE/length``.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    if not trajectories:
        return []
    versions = np.concatenate([t.versions for t in trajectories])
    staleness = step - versions[versions >= 0]
    generated = np.concatenate([t.loss_mask for t in trajectories])
    logprobs = np.concatenate([t.logprobs for t in trajectories])[generated]
    length = float(generated.sum())
    num = len(trajectories)
    metrics = _reward_metrics([group.rewards for group in groups])
    metrics += [
        Metric(name="rollout/groups", sum=len(groups), reduction="sum"),
        Metric(name="rollout/length", sum=length, count=num),
        Metric(name="rollout/tokens", sum=length, reduction="sum"),
        Metric(name="rollout/prompt_tokens", sum=generated.size - length, reduction="sum"),
        Metric(name="rollout/sampled_entropy", sum=-float(logprobs.sum(dtype=np.float64)), count=length),
        Metric(name="rollout/truncated", sum=sum(t.stop_reason == "length" for t in trajectories), count=num),
        Metric(name="rollout/unscored", sum=sum(bool(t.unscored) for t in trajectories), reduction="sum"),
        Metric(name="rollout/staleness", sum=float(staleness.sum()), count=staleness.size),
    ]
    if staleness.size:
        for name, share in (("median", 0.5), ("p95", 0.95)):
            quantile = float(np.quantile(staleness, share, method="inverted_cdf"))
            metrics.append(Metric(name=f"rollout/staleness_{name}", sum=quantile))
        metrics.append(Metric(name="rollout/staleness_max", sum=float(staleness.max()), reduction="max"))
    if by_source:
        metrics += _source_metrics(groups)
    return [*metrics, *_reported(groups)]


def _reward_metrics(rewards: Sequence[Sequence[float]]) -> list[Metric]:
    """Of groups' rewards; nothing where nobody was scored."""
    scored = [reward for of_group in rewards for reward in of_group]
    if not scored:
        return []
    num_equal = sum(len(of_group) > 0 and min(of_group) == max(of_group) for of_group in rewards)
    return [
        Metric(name="rollout/reward", sum=sum(scored), count=len(scored)),
        Metric(name="rollout/equal_rewards", sum=num_equal, count=len(rewards)),
    ]


def _source_metrics(groups: Sequence[Group]) -> list[Metric]:
    sources: defaultdict[str, list[Group]] = defaultdict(list)
    for group in groups:
        sources[group.prompt.source].append(group)
    metrics = []
    for name, members in sorted(sources.items()):
        rewards = [reward for group in members for reward in group.rewards]
        lengths = [t.num_generated for group in members for t in group.trajectories]
        metrics.append(Metric(name=f"rollout/{name}/reward", sum=sum(rewards), count=len(rewards)))
        metrics.append(Metric(name=f"rollout/{name}/length", sum=sum(lengths), count=len(lengths)))
    return metrics


def _reported(groups: Sequence[Group]) -> list[Metric]:
    """Parts of composite rewards and numbers of workflows and rewards: means over the trajectories having them.

    Of the parts of a reward also ``_std``, ``_min`` and ``_max``.
    """
    values: defaultdict[str, list[float]] = defaultdict(list)
    for trajectory in (t for group in groups for t in group.trajectories):
        for key, value in trajectory.reward_parts.items():
            values[f"rollout/reward/{key}"].append(value)
        for key, value in trajectory.metrics.items():
            values[f"rollout/metrics/{key}"].append(value)
    metrics = []
    for name, of_name in sorted(values.items()):
        metrics.append(Metric(name=name, sum=sum(of_name), count=len(of_name)))
        if name.startswith("rollout/reward/"):
            metrics += [
                Metric(name=f"{name}_std", sum=float(np.std(of_name))),
                Metric(name=f"{name}_min", sum=min(of_name), reduction="min"),
                Metric(name=f"{name}_max", sum=max(of_name), reduction="max"),
            ]
    return metrics
