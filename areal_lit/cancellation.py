"""Whether a CancelledError is an order to the running task, or only what code that it awaited raised."""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Whether someone has asked the running task to end. Not so for a CancelledError that a library let out."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
