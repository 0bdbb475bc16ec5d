"""The live picture of a run: its lines, each cut to a width; and the line of a step where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from areal_lit_callbacks.progress.course import Course
from areal_lit_callbacks.progress.words import amount, clock, fitting, span, sparkline

if TYPE_CHECKING:
    from rich.text import Text

LABEL_WIDTH = 11
SHORT = {"wait_batch": "wait", "prepare": "prep", "sync_weights": "sync", "evaluate": "eval", "checkpoint": "save"}


def picture(course: Course, width: int) -> list[Text]:
    """The lines of the display, none wider than ``width``. For any thread."""
    with course.lock:
        return _lines(course, width)


def _lines(course: Course, width: int) -> list[Text]:
    room = max(1, width - LABEL_WIDTH)
    rows = [
        (course.objective, _objective(course, room), "cyan"),
        ("rollouts", _rollouts(course), ""),
        ("tokens/s", _speeds(course), ""),
        ("step time", _times(course), ""),
        ("warning", _warnings(course), "bold red"),
        ("now", [course.doing()], "yellow"),
    ]
    return [_headline(course, width), *(_row(label, fitting(p, room), width, style) for label, p, style in rows if p)]


def step_line(course: Course) -> str:
    """The same in a line of plain text."""
    left = course.seconds_left
    value = (
        [f"{course.objective} {course.last[-1]:.{3 if course.objective == 'reward' else 4}f}"] if course.last else []
    )
    speeds = [f"{speed} tok/s" for speed in _speeds(course)]
    return "  ".join(
        [
            f"step {course.count}",
            *value,
            *_rollouts(course),
            *speeds,
            *([] if left is None else [f"{clock(left)} left"]),
        ]
    )


def _headline(course: Course, width: int) -> Text:
    from rich.text import Text

    left = course.seconds_left
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{course.name[: width // 3]}  ", style="bold").append(f"step {course.count}  ")
    tail = "" if left is None else f"  {clock(left)} left"
    if course.num_steps:
        share = min(1.0, course.step / course.num_steps)
        tail = f" {share:4.0%}{tail}"
        room = width - line.cell_len - len(tail)
        if room >= 4:
            filled = round(room * share)
            line.append("━" * filled, style="blue").append("━" * (room - filled), style="bright_black")
    line.append(tail)
    line.truncate(width, overflow="ellipsis")
    return line


def _row(label: str, value: str, width: int, style: str) -> Text:
    from rich.text import Text

    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{label:<{LABEL_WIDTH}}", style="bright_black").append(value, style=style or None)
    line.truncate(width, overflow="ellipsis")
    return line


def _objective(course: Course, room: int) -> Iterable[str]:
    if not course.last:
        return []
    best = f"  best {course.best:.3f}"
    curve = sparkline(course.curve.points()[1], max(1, room - 9 - len(best)))
    return [f"{course.last[-1]:<8.3f} {curve}{best}"]


def _rollouts(course: Course) -> list[str]:
    metrics = course.metrics
    parts = []
    if "rollout/staleness" in metrics:
        oldest = metrics.get("rollout/staleness_max", 0.0)
        more = f" (max {oldest:.0f})" if oldest > metrics["rollout/staleness"] else ""
        parts.append(f"stale {metrics['rollout/staleness']:.1f}{more}")
    if "rollout/length" in metrics:
        parts.append(f"length {metrics['rollout/length']:.1f}")
    if metrics.get("rollout/truncated"):
        parts.append(f"truncated {metrics['rollout/truncated']:.0%}")
    return parts


def _speeds(course: Course) -> list[str]:
    out, into = course.rate("rollout/tokens", "data/tokens"), course.rate("rollout/prompt_tokens")
    if into is None:
        return [] if out is None else [amount(out)]
    return [f"in {amount(into)}", f"out {amount(out or 0.0)}"]


def _times(course: Course) -> list[str]:
    times = course.times()
    if times is None or not times.step:
        return []
    shares = {SHORT.get(name, name): seconds / times.step for name, seconds in times.phases.items()}
    return [span(times.step), *(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005)]


def _warnings(course: Course) -> list[str]:
    ending = ["interrupted: ends after this step (Ctrl-C again: at once)"] if course.is_ending else []
    return ["; ".join((*ending, *course.concerns.values()))] if ending or course.concerns else []
