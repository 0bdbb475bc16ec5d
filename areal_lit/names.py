"""What to say to someone who wrote a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(name: str, known: Iterable[str]) -> str:
    """``did you mean X? Known: ...``, the closest first; ``there are none`` when nothing is known."""
    names = sorted(known)
    if not names:
        return "there are none"
    ranked = sorted(names, key=lambda other: -difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio())
    similar = difflib.get_close_matches(name.lower(), [ranked[0].lower()], n=1, cutoff=0.6)
    guess = f"did you mean {ranked[0]}? " if similar else ""
    return f"{guess}Known: {', '.join(ranked)}"
