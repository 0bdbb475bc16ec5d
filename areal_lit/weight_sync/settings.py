"""WeightSync: the `sync` section of a recipe."""

from __future__ import annotations

from typing import final


@final
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

    def __init__(
        self,
        *,
        interval: int = 1,
        timeout_s: float = 300.0,
        probe_first: int = 2,
        probe_every: int = 50,
        probe_tokens: int = 16,
        probe_prompts: int = 2,
        warn_above: float | None = None,
        abort_above: float | None = None,
    ) -> None:
        for name, value, least in (
            ("interval", interval, 1), ("probe_first", probe_first, 0), ("probe_every", probe_every, 0),
            ("probe_tokens", probe_tokens, 1), ("probe_prompts", probe_prompts, 1),
        ):  # fmt: skip
            if value < least:
                raise ValueError(f"sync.{name} must be >= {least}, got {value}")
        if timeout_s <= 0:
            raise ValueError(f"sync.timeout_s must be > 0, got {timeout_s}")
        if warn_above is not None and abort_above is not None and warn_above > abort_above:
            raise ValueError(f"sync.warn_above must be <= sync.abort_above, got {warn_above} > {abort_above}")
        self.interval = interval
        self.timeout_s = timeout_s
        self.probe_first = probe_first
        self.probe_every = probe_every
        self.probe_tokens = probe_tokens
        self.probe_prompts = probe_prompts
        self.warn_above = warn_above
        self.abort_above = abort_above
