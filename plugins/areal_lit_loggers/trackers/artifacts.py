"""What trackers do with a model that a run exports."""

from __future__ import annotations

from typing import Literal, get_args

Artifacts = Literal["none", "reference", "upload"]


def check_artifacts(value: Artifacts) -> Artifacts:
    """The value. Raises ValueError unless it is one of ``Artifacts``."""
    if value not in get_args(Artifacts):
        raise ValueError(f"artifacts must be one of {', '.join(get_args(Artifacts))}, got {value!r}")
    return value
