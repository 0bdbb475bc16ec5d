"""WeightSync: the `sync` section of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from areal_lit.sizes import MAX_SLOTS, require_size


@final
@dataclass(frozen=True, kw_only=True)
class WeightSync:
    """When weights go to the engine, how long that may take, and how it is checked.

    Limits are on the mean absolute difference of log-probs between engine and trainer. By default they follow the
    served precision: warn above 1e-3 and end the run above 1e-2 for float32 (TF32 and other kernels stay below 1e-3),
    0.05 and 0.25 for bfloat16 and lower (healthy runs show 0.01 to 0.03).

    Args:
        interval: steps between syncs.
        timeout_s: for pausing, again for the transfer, and for a probe.
        probe_first: compare log-probs after each of the first so many syncs.
        probe_every: and then after every so-many-th; 0: never again.
        probe_tokens: tokens generated per probe prompt.
        probe_prompts: prompts per probe; always the same, so that a stale KV prefix shows.
        warn_above: difference that is logged as a warning; None: by precision.
        abort_above: difference that ends the run; None: by precision.
    """

    interval: int = 1
    timeout_s: float = 300.0
    probe_first: int = 2
    probe_every: int = 50
    probe_tokens: int = 16
    probe_prompts: int = 2
    warn_above: float | None = None
    abort_above: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("interval", 1), ("probe_first", 0), ("probe_every", 0), ("probe_tokens", 1)):
            require_size(f"sync.{name}", getattr(self, name), least=least)
        require_size("sync.probe_prompts", self.probe_prompts, least=1, most=MAX_SLOTS)
        if not self.timeout_s > 0:
            raise ValueError(f"sync.timeout_s must be > 0, got {self.timeout_s}")
        for name, limit in (("warn_above", self.warn_above), ("abort_above", self.abort_above)):
            if limit is not None and not limit >= 0:  # nothing is above nan
                raise ValueError(f"sync.{name} must be >= 0, got {limit}")
        if self.warn_above is not None and self.abort_above is not None and self.warn_above > self.abort_above:
            raise ValueError(f"sync.warn_above must be <= sync.abort_above, got {self.warn_above} > {self.abort_above}")
