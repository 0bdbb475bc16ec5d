"""The working directory, which may be deleted before a command or under it."""

from __future__ import annotations

import os


def deletion() -> str | None:
    """What to say and do about a working directory that is gone; None while it is there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the working directory has been deleted; change to one that exists (cd)"
    return None
