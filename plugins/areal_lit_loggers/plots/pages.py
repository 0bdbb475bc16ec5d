"""Pages: which metrics share a picture, and what its axes say. Knows nothing of how pictures are drawn."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from areal_lit.measures import measure_of

PANELS_PER_PAGE = 12
MAX_PAGES = 24

SUBJECTS = frozenset({"reward", "length", "entropy", "staleness", "mismatch", "time", "overview"})
PHASES = ("wait_batch", "prepare", "train", "sync_weights", "evaluate", "checkpoint")

OVERVIEW = (
    "rollout/reward", "eval/*/reward", "rollout/length", "rollout/truncated", "rollout/staleness",
    "rollout/sampled_entropy", "rollout/tokens", "train/loss", "train/grad_norm", "train/entropy", "train/clip_low",
    "train/clip_high", "train/kl_behaviour", "train/kl_reference", "train/effective_sample_size",
    "train/zero_variance_groups", "train/teacher_divergence", "critic/explained_variance", "*/cross_entropy",
    "*/pair_accuracy", "*/reward_margin", "sync/probe_difference", "time/step",
)  # fmt: skip
"""By name or pattern, in the order of their panels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes.

    Args:
        curves: metric -> what the legend calls it.
        unit: of the vertical axis.
        style: ``line``; ``log`` for magnitudes that span decades; ``stack`` for parts of a whole.
        points: metrics of ``curves`` that are drawn as points, because they come rarely.
        intervals: of some of these, the metric that says how far they may be off.
    """

    title: str
    curves: Mapping[str, str]
    unit: str
    style: Literal["line", "log", "stack"] = "line"
    points: frozenset[str] = frozenset()
    intervals: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A picture, ``NAME.png``."""

    name: str
    panels: Sequence[Panel]
    note: str = ""


def pages(metrics: Iterable[str], *, overview: Sequence[str] = OVERVIEW, silent: Iterable[str] = ()) -> list[Page]:
    """A page per subject (reward, length, entropy, staleness, mismatch, time), an overview, and one per key prefix.

    Every metric is on one of them, as long as ``MAX_PAGES`` last; the last page says how many are not.

    Args:
        overview: names or patterns of metrics; what is not reported is left out.
        silent: metrics that are only named, below the page they belong to: they were 0 at every step.
    """
    names = sorted(set(metrics))
    found = [page for page in _subjects(names) if page.panels]
    quiet = frozenset(silent)
    found += _overview(names, overview, quiet)
    panels = [panel for page in found if page.name != "overview" for panel in page.panels]
    shown = {name for panel in panels for name in (*panel.curves, *panel.intervals.values())}
    rest = _by_prefix([name for name in names if name not in shown], quiet)
    room = MAX_PAGES - len(found)
    if len(rest) > room:
        lost = sum(len(page.panels) for page in rest[room:])
        rest = [*rest[: room - 1], _with_note(rest[room - 1], f"{lost} further metrics are in metrics.csv only")]
    return found + rest


def _subjects(names: Sequence[str]) -> Iterable[Page]:
    yield Page(
        name="reward", panels=[*_panels("", names, ["rollout/reward"], r"^(rollout|eval)/(.+)/reward$", "reward")]
    )
    yield Page(
        name="length",
        panels=[
            *_panels("completion length", names, ["rollout/length"], r"^(rollout|eval)/(.+)/length$", "tokens"),
            *_panels("truncated at max_new_tokens", names, ["rollout/truncated"], None, "share"),
        ],
    )
    entropy = ["train/entropy", "rollout/sampled_entropy"]
    yield Page(name="entropy", panels=[*_panels("entropy per generated token", names, entropy, None, "nats")])
    staleness = [f"rollout/staleness{end}" for end in ("", "_median", "_p95", "_max")]
    yield Page(name="staleness", panels=[*_panels("staleness of trained tokens", names, staleness, None, "steps")])
    mismatch = [f"{name}{end}" for name in ("train/logprob_mismatch", "sync/probe_difference") for end in ("", "_max")]
    title = "log-prob difference of engine and trainer"
    yield Page(name="mismatch", panels=[*_panels(title, names, mismatch, None, "nats", style="log")])
    phases = [f"time/{phase}" for phase in PHASES]
    yield Page(name="time", panels=[*_panels("time per phase", names, phases, None, "seconds per step", style="stack")])


def _overview(names: Sequence[str], wanted: Sequence[str], silent: frozenset[str]) -> list[Page]:
    """A small panel for each of the wanted metrics, if there are at least two."""
    chosen = list(dict.fromkeys(name for like in wanted for name in names if name == like or fnmatchcase(name, like)))
    panels = [_panel(name, is_titled=True) for name in chosen if name not in silent]
    note = _silence(name for name in chosen if name in silent)
    return [Page(name="overview", panels=panels[: 2 * PANELS_PER_PAGE], note=note)] if len(panels) > 1 else []


def _silence(names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f"always 0: {listed}" if listed else ""


def _panels(
    title: str, names: Sequence[str], fixed: Sequence[str], pattern: str | None, unit: str,
    style: Literal["line", "log", "stack"] = "line",
) -> Iterable[Panel]:  # fmt: skip
    """One panel of the fixed metrics and those that match, or none."""
    matching = {name: match for name in names if pattern and (match := re.match(pattern, name))}
    labels = {name: _label(name, is_alone=not matching) for name in fixed if name in names}
    points = {name for name, match in matching.items() if match[1] == "eval"}
    labels |= {name: f"{match[1]} {match[2]}" if name in points else match[2] for name, match in matching.items()}
    if labels:
        intervals = {name: f"{name}_ci95" for name in points if f"{name}_ci95" in names}
        yield Panel(
            title=title, curves=labels, unit=unit, style=style, points=frozenset(points), intervals=intervals
        )  # fmt: skip


def _label(name: str, *, is_alone: bool) -> str:
    if name.startswith("time/"):
        return name.removeprefix("time/").replace("_", " ")
    return name if is_alone else "training samples"


def _panel(name: str, *, is_titled: bool = False) -> Panel:
    """One metric, under its name or its title."""
    measure = measure_of(name)
    points = frozenset([name]) if name.startswith("eval/") else frozenset()
    title = measure.title if is_titled else name
    return Panel(title=title, curves={name: name}, unit=measure.unit, points=points)


def _by_prefix(names: Sequence[str], silent: frozenset[str]) -> list[Page]:
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[name.rpartition("/")[0] or "other"].append(name)
    found: dict[str, Page] = {}
    for prefix, members in sorted(groups.items()):
        note = _silence(name.rpartition("/")[2] for name in members if name in silent)
        drawn = [_panel(name) for name in members if name not in silent]
        for start in range(0, len(drawn), PANELS_PER_PAGE):
            number = start // PANELS_PER_PAGE + 1
            name = file_name(prefix if number == 1 else f"{prefix}_{number}", taken=found)
            found[name] = Page(
                name=name, panels=drawn[start : start + PANELS_PER_PAGE], note=note if number == 1 else ""
            )
    return list(found.values())


def file_name(prefix: str, *, taken: Container[str] = ()) -> str:
    """A file's name without its ending, made of a prefix that may hold anything."""
    plain = re.sub(r"[^A-Za-z0-9@_-]+", "_", prefix).strip("_")[:80] or "other"
    name = plain = f"{plain}_metrics" if plain in SUBJECTS else plain
    number = 1
    while name in taken:
        number += 1
        name = f"{plain}_{number}"
    return name


def _with_note(page: Page, note: str) -> Page:
    return Page(name=page.name, panels=page.panels, note="; ".join(filter(None, (page.note, note))))
