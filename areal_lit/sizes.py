"""Sizes that no machine has: a count beyond them is a slip, told before anything is allocated or started for it."""

from __future__ import annotations

MAX_PROCESSES = 65_536
"""Ranks of a role, reward workers."""
MAX_THREADS = 4_096
"""Of one process."""
MAX_SLOTS = 65_536
"""Sequences that one engine decodes together."""
MAX_EPISODES = 10_000_000
"""Held at once: running, ready, or consumed by one step."""
MAX_EXAMPLES = 1_000_000_000
"""Of one source; their order alone takes 8 bytes each."""


def require_size(name: str, value: float, *, least: int, most: int | None = None) -> None:
    """Raise ValueError unless ``least <= value <= most``.

    Args:
        most: one of the sizes above, where something is allocated or started for each; None where nothing is.
    """
    if not value >= least:
        raise ValueError(f"{name} must be >= {least}, got {value}")
    if most is not None and value > most:
        raise ValueError(f"{name} must be <= {most}, more than any machine holds, got {value}")
