"""What to say to someone who wrote a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(name: str, known: Iterable[str]) -> str:
    """``did you mean X?``; the known names, sorted, where none is close; ``there are none`` where none is known."""
    names = sorted(known)
    if not names:
        return "there are none"
    of_lower = {other.lower(): other for other in names}
    similar = difflib.get_close_matches(name.lower(), of_lower)
    similar.sort(key=lambda other: sorted(other) != sorted(name.lower()))  # two letters in the wrong order come first
    return f"did you mean {of_lower[similar[0]]}?" if similar else f"known: {', '.join(names)}"
