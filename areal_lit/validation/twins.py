"""Rules of lists: no part does the work of another again, and no two loggers write one file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from areal_lit.contracts import Component
from areal_lit.validation.walk import walk

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


def twin_rules(trainer: Trainer) -> Iterator[str]:
    """A sentence per part of a list that is there twice, and per place that two loggers would write."""
    for name in ("filters", "loggers", "callbacks"):
        parts = [_spelled(part) for part in getattr(trainer, name) or ()]
        for index, part in enumerate(parts):
            if part in parts[:index]:
                first, kind = parts.index(part), type(getattr(trainer, name)[index]).__name__
                yield f"{name}.{index} is {name}.{first} again ({kind} with the same arguments); remove one of them"
    writers = defaultdict(list)
    loggers = trainer.loggers or ()
    for index, logger in enumerate(loggers):
        if logger.writes and _spelled(logger) not in map(_spelled, loggers[:index]):
            writers[logger.writes].append(f"loggers.{index}")
    for place, names in writers.items():
        if len(names) > 1:
            yield (
                f"{' and '.join(names)} would each write {place!r} in the run's directory; keep one, or give each its "
                "own where it takes a file_name"
            )


def _spelled(part: Component) -> list[tuple[str, Any]]:
    """A component as a recipe would say it: its class and arguments, by path."""
    return [(path, type(value) if isinstance(value, Component) else value) for path, value in walk("it", part)]
