"""Versions of installed distributions."""

from __future__ import annotations

from importlib import metadata


def version_of(distribution: str) -> str | None:
    """The installed version; None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
