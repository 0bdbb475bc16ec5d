"""What a run ran with: packages, interpreter, and the commit of the project it was started in."""

from __future__ import annotations

import platform
import subprocess

from areal_lit.versions import version_of

PACKAGES = ("areal-lit", "torch", "transformers", "numpy")
GIT_TIMEOUT_S = 5.0


def versions() -> dict[str, str | None]:
    """Versions by name; None for a package that is not installed, and for the commit outside a git repository."""
    return {"python": platform.python_version(), **{name: version_of(name) for name in PACKAGES}, "commit": _commit()}


def _commit() -> str | None:
    """Of the current directory, with ``-dirty`` after it where tracked files were changed."""
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
