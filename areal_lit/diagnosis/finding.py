"""Finding: one thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found, and what to do about it.

    Args:
        level: ``error`` when a run would fail, ``warning`` when it may, or would be slow.
        subject: what was looked at (``torch``, ``open files``).
        found: the facts, in a line where they are few.
        advice: a command where there is one; empty when all is well.
    """

    level: Level
    subject: str
    found: str
    advice: str = ""


def ok(subject: str, found: str) -> Finding:
    """All is well."""
    return Finding(level="ok", subject=subject, found=found)


def warning(subject: str, found: str, advice: str) -> Finding:
    """A run may fail of it, or be slow."""
    return Finding(level="warning", subject=subject, found=found, advice=advice)


def error(subject: str, found: str, advice: str) -> Finding:
    """A run would fail of it."""
    return Finding(level="error", subject=subject, found=found, advice=advice)
