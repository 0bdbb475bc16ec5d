"""What to say to someone who wrote a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant; None where no name is close."""
    of_lower = {other.lower(): other for other in sorted(known)}
    similar = difflib.get_close_matches(name.lower(), of_lower)
    similar.sort(key=lambda other: sorted(other) != sorted(name.lower()))  # two letters in the wrong order come first
    return of_lower[similar[0]] if similar else None


def closest(name: str, known: Iterable[str]) -> str:
    """``did you mean X?``; the known names, sorted, where none is close; ``there are none`` where none is known."""
    names = sorted(known)
    if not names:
        return "there are none"
    meant = nearest(name, names)
    return f"known: {', '.join(names)}" if meant is None else f"did you mean {meant}?"
