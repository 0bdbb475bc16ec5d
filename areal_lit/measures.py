"""Measures: what each metric is counted in, and which way is better, for displays, plots and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What is known of a metric.

    Args:
        unit: for people; what a metric is called where there is no other.
        best: ``max`` or ``min`` of its values; None where neither is better in itself.
    """

    unit: str
    best: Callable[[Iterable[float]], float] | None = None


_MEASURES = {
    "time/*": Measure(unit="seconds", best=min),
    "*seconds": Measure(unit="seconds", best=min),
    "*loss": Measure(unit="loss", best=min),
    "*/reward": Measure(unit="reward", best=max),
    "*/reward/*": Measure(unit="reward"),
    "*/advantage*": Measure(unit="reward"),
    "*/pass@*": Measure(unit="share", best=max),
    "*accuracy": Measure(unit="share", best=max),
    "*success*": Measure(unit="share", best=max),
    "*truncated": Measure(unit="share", best=min),
    "*budget_used": Measure(unit="share", best=min),
    "*equal_rewards": Measure(unit="share"),
    "*_groups": Measure(unit="share"),
    "*/clip*": Measure(unit="share"),
    "*capped": Measure(unit="share"),
    "*length": Measure(unit="tokens"),
    "*tokens": Measure(unit="tokens"),
    "*logprob_mismatch*": Measure(unit="nats", best=min),
    "*probe_difference*": Measure(unit="nats", best=min),
    "*kl_weight": Measure(unit="ratio"),
    "*/kl": Measure(unit="nats"),
    "*/kl_*": Measure(unit="nats"),
    "*entropy": Measure(unit="nats"),
    "*staleness*": Measure(unit="steps"),
    "*skipped_steps": Measure(unit="steps", best=min),
    "*/queue": Measure(unit="calls"),
    "*unscored": Measure(unit="rewards", best=min),
    "*/groups_finished": Measure(unit="groups"),
    "*/running": Measure(unit="groups"),
    "*/ready": Measure(unit="groups"),
    "*/rejected*": Measure(unit="groups"),
    "*/stale_kept": Measure(unit="groups"),
    "*_episodes": Measure(unit="episodes", best=min),
    "*/retries": Measure(unit="episodes", best=min),
    "*ratio*": Measure(unit="ratio"),
    "*weight": Measure(unit="ratio"),
}
"""By pattern of the name, of which the first that matches counts."""


def measure_of(metric: str) -> Measure:
    """Its measure; of an unknown metric the unit is the last part of its name."""
    for pattern, measure in _MEASURES.items():
        if fnmatchcase(metric, pattern):
            return measure
    return Measure(unit=metric.rpartition("/")[2].replace("_", " "))
