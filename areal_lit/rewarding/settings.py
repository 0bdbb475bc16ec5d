"""Rewarding: the settings of how rewards are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from areal_lit.sizes import MAX_PROCESSES, require_size


@final
@dataclass(frozen=True, kw_only=True)
class Rewarding:
    """How rewards are computed, and what happens when one cannot be.

    Args:
        num_workers: processes that score; a hung one is killed and replaced.
        timeout_s: longest execution of one call; time in the queue does not count.
        max_attempts: of one call, the first included.
        on_failure: drop (the sample is left out of training and counted) or raise (the run ends).
        batch_size: most calls that are sent to a worker at once.
        max_kills_in_row: so many calls that hang or end their worker, with no other answer between them, end the run.
    """

    num_workers: int = 2
    timeout_s: float = 10.0
    max_attempts: int = 2
    on_failure: Literal["drop", "raise"] = "drop"
    batch_size: int = 64
    max_kills_in_row: int = 32

    def __post_init__(self) -> None:
        require_size("rewarding.num_workers", self.num_workers, least=1, most=MAX_PROCESSES)
        for name in ("max_attempts", "batch_size", "max_kills_in_row"):
            require_size(f"rewarding.{name}", getattr(self, name), least=1)
        if not self.timeout_s > 0:
            raise ValueError(f"rewarding.timeout_s must be > 0, got {self.timeout_s}")
        if self.on_failure not in ("drop", "raise"):
            raise ValueError(f"rewarding.on_failure must be drop or raise, got {self.on_failure!r}")
