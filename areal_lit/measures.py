"""Measures: what each metric is called and counted in, and which way is better, for displays, plots and comparisons."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What is known of a metric.

    Args:
        unit: for people.
        title: for people.
        best: ``max`` or ``min`` of its values; None where neither is better in itself.
    """

    unit: str
    title: str = ""
    best: Callable[[Iterable[float]], float] | None = None


_MEASURES = {
    # what rollouts brought
    "rollout/reward": Measure(title="reward", unit="reward", best=max),
    "rollout/*/reward": Measure(title="reward, {}", unit="reward", best=max),
    "rollout/reward/*_std": Measure(title="reward part {}, deviation", unit="reward"),
    "rollout/reward/*_min": Measure(title="reward part {}, smallest", unit="reward"),
    "rollout/reward/*_max": Measure(title="reward part {}, largest", unit="reward"),
    "rollout/reward/*": Measure(title="reward part {}", unit="reward"),
    "rollout/equal_rewards": Measure(title="groups of equal rewards", unit="share"),
    "rollout/length": Measure(title="completion length", unit="tokens"),
    "rollout/*/length": Measure(title="completion length, {}", unit="tokens"),
    "rollout/truncated": Measure(title="truncated", unit="share", best=min),
    "rollout/sampled_entropy": Measure(title="sampled entropy", unit="nats"),
    "rollout/staleness": Measure(title="staleness", unit="steps"),
    "rollout/staleness_*": Measure(title="staleness, {}", unit="steps"),
    "rollout/groups": Measure(title="groups trained on", unit="groups"),
    "rollout/tokens": Measure(title="generated tokens", unit="tokens"),
    "rollout/prompt_tokens": Measure(title="prompt tokens", unit="tokens"),
    "rollout/max_new_tokens": Measure(title="generation budget", unit="tokens"),
    "rollout/groups_finished": Measure(title="groups finished", unit="groups"),
    "rollout/rejected": Measure(title="groups rejected", unit="groups"),
    "rollout/rejected/*": Measure(title="groups rejected, {}", unit="groups"),
    "rollout/stale_kept": Measure(title="stale groups kept", unit="groups"),
    "rollout/running": Measure(title="groups running", unit="groups"),
    "rollout/ready": Measure(title="groups ready", unit="groups"),
    "rollout/failed_episodes": Measure(title="failed episodes", unit="episodes", best=min),
    "rollout/dropped_episodes": Measure(title="dropped episodes", unit="episodes", best=min),
    "rollout/retries": Measure(title="retried episodes", unit="episodes", best=min),
    "rollout/failure_budget_used": Measure(title="failure budget used", unit="share", best=min),
    "rollout/unscored": Measure(title="samples without a reward", unit="rewards", best=min),
    # how rewards were computed
    "reward/unscored": Measure(title="rewards not to be had", unit="rewards", best=min),
    "reward/unscored_*": Measure(title="rewards not to be had: {}", unit="rewards", best=min),
    "reward/retries": Measure(title="retried rewards", unit="rewards", best=min),
    "reward/killed_workers": Measure(title="killed reward workers", unit="workers", best=min),
    "reward/seconds": Measure(title="time of a reward", unit="seconds", best=min),
    "reward/queue": Measure(title="rewards waited for", unit="calls"),
    # what the step's data and the algorithm did with each other
    "*/zero_variance_groups": Measure(title="groups without variance", unit="share"),
    "*/single_groups": Measure(title="groups of one valid sample", unit="share"),
    "*/without_step_scores": Measure(title="completions without scores of steps", unit="share"),
    "*/empty_groups": Measure(title="groups without valid samples", unit="share"),
    "train/reward_*_mean": Measure(title="{} reward, mean", unit="reward"),
    "train/reward_*_std": Measure(title="{} reward, deviation", unit="reward"),
    "train/reward_*_min": Measure(title="{} reward, smallest", unit="reward"),
    "train/reward_*_max": Measure(title="{} reward, largest", unit="reward"),
    "*/reward_chosen": Measure(title="reward of the chosen", unit="reward"),
    "*/reward_rejected": Measure(title="reward of the rejected", unit="reward"),
    "*/reward_margin": Measure(title="margin of the chosen", unit="reward"),
    "*/pair_accuracy": Measure(title="pair accuracy", unit="share", best=max),
    "train/advantage_*": Measure(title="advantage, {}", unit="advantage"),
    "train/return_*": Measure(title="return, {}", unit="reward"),
    "*/explained_variance": Measure(title="explained variance", unit="share", best=max),
    "*/value_error": Measure(title="error of the value", unit="reward², halved", best=min),
    "*/value_clipped": Measure(title="clipped values", unit="share"),
    "train/value_*": Measure(title="value, {}", unit="reward"),
    "*/clip_*": Measure(title="clipped, {1}", unit="share"),
    "*/rejected_*": Measure(title="off-policy weight bounded, {1}", unit="share"),
    "*/weight_capped": Measure(title="off-policy weight capped", unit="share"),
    "*/gate_slope": Measure(title="slope of the gate", unit="ratio"),
    "*/m2_dropped": Measure(title="dropped by second moment", unit="share"),
    "*/ratio_behaviour": Measure(title="ratio to the behaviour policy", unit="ratio"),
    "*/ratio_proximal": Measure(title="ratio to the proximal policy", unit="ratio"),
    "*/ratio_off_policy": Measure(title="ratio of proximal to behaviour", unit="ratio"),
    "*/ratio_*_max": Measure(title="ratio {1}, largest", unit="ratio"),
    "*/off_policy_weight": Measure(title="off-policy weight", unit="ratio"),
    "*/off_policy_weight_square": Measure(title="off-policy weight squared", unit="ratio"),
    "*/effective_sample_size": Measure(title="effective sample size", unit="share", best=max),
    "*/proximal_gap_*": Measure(title="proximal policy, {1} against recomputed", unit="nats"),
    "*/kl_weight": Measure(title="weight of the KL", unit="ratio"),
    "*/kl_reference": Measure(title="KL to the reference", unit="nats"),
    "*/kl_behaviour": Measure(title="KL from the behaviour policy", unit="nats"),
    "*/kl_proximal": Measure(title="KL from the proximal policy", unit="nats"),
    "*/kl_off_policy": Measure(title="KL of behaviour to proximal", unit="nats"),
    "*/teacher_divergence": Measure(title="divergence from the teacher", unit="nats", best=min),
    "*/entropy": Measure(title="entropy of the policy", unit="nats"),
    "*/cross_entropy": Measure(title="cross entropy", unit="nats", best=min),
    "*/logprob_mismatch": Measure(title="trainer against engine", unit="nats", best=min),
    "*/logprob_mismatch_max": Measure(title="trainer against engine, largest", unit="nats", best=min),
    # optimizer steps
    "train/loss": Measure(title="loss", unit="loss", best=min),
    "*/loss": Measure(title="loss, {}", unit="loss", best=min),
    "*/grad_norm": Measure(title="gradient norm", unit="grad norm"),
    "*/lr": Measure(title="learning rate", unit="learning rate"),
    "*/skipped_steps": Measure(title="skipped optimizer steps", unit="steps", best=min),
    "data/rows": Measure(title="rows of data", unit="rows"),
    "data/empty_rows": Measure(title="rows without trained tokens", unit="rows", best=min),
    "data/tokens": Measure(title="tokens of data", unit="tokens"),
    "train/tokens": Measure(title="tokens trained on", unit="tokens"),
    # evaluation
    "eval/*/reward": Measure(title="reward on {}", unit="reward", best=max),
    "eval/*/reward_ci95": Measure(title="reward on {}, half of 95% interval", unit="reward"),
    "eval/*/pass@*": Measure(title="pass@{1} on {0}", unit="share", best=max),
    "eval/*/length": Measure(title="completion length on {}", unit="tokens"),
    "eval/*/unscored": Measure(title="samples without a reward on {}", unit="rewards", best=min),
    # time and weights
    "time/step": Measure(title="step time", unit="seconds", best=min),
    "time/*": Measure(title="time of {}", unit="seconds", best=min),
    "sync/seconds": Measure(title="time of a weight sync", unit="seconds", best=min),
    "sync/*_seconds": Measure(title="weight sync, {}", unit="seconds", best=min),
    "sync/probe_difference": Measure(title="engine against trainer", unit="nats", best=min),
    "sync/probe_difference_max": Measure(title="engine against trainer, largest", unit="nats", best=min),
}  # fmt: skip
"""By pattern of the name, of which the first that matches counts; a title takes what the stars stand for."""

_OF_PLUGINS = {
    "*seconds": Measure(unit="seconds", best=min),
    "*loss": Measure(unit="loss", best=min),
    "*/reward": Measure(unit="reward", best=max),
    "*accuracy": Measure(unit="share", best=max),
    "*success*": Measure(unit="share", best=max),
    "*length": Measure(unit="tokens"),
    "*tokens": Measure(unit="tokens"),
    "*_episodes": Measure(unit="episodes", best=min),
    "*/kl_*": Measure(unit="nats"),
    "*entropy": Measure(unit="nats"),
}
"""Of metrics that nothing here reports, as far as their names tell."""

PATTERNS = tuple(_MEASURES)
"""Of all metrics that areal-lit and its first-party plugins report."""

_KNOWN = _MEASURES | _OF_PLUGINS


def measure_of(metric: str) -> Measure:
    """Its measure; of an unknown metric the title is its name, and the unit the last part of that."""
    for pattern, measure in _KNOWN.items():
        if match := _compiled(pattern).fullmatch(metric):
            title = measure.title.format(*(part.replace("_", " ") for part in match.groups()))
            return replace(measure, title=title or metric)
    return Measure(title=metric, unit=metric.rpartition("/")[2].replace("_", " "))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", "(.*)"), re.DOTALL)
