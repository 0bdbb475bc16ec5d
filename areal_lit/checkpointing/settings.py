"""Settings of checkpoints: when to save, what to keep, and which one counts as the best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final


@final
@dataclass(frozen=True, kw_only=True)
class Best:
    """Which evaluation decides on the best checkpoint.

    Args:
        set: name of the evaluation set.
        metric: of that set: ``reward``, ``pass@1``, ``pass@k`` for k samples, ``length``; of an offline algorithm
            ``loss`` and its own.
        mode: whether the highest (``max``) or the lowest (``min``) is best.
    """

    set: str
    metric: str = "reward"
    mode: Literal["max", "min"] = "max"

    def __post_init__(self) -> None:
        if self.mode not in ("max", "min"):
            raise ValueError(f"checkpoint.best.mode must be max or min, got {self.mode!r}")

    @property
    def key(self) -> str:
        """The metric's name in a run: ``eval/SET/METRIC``."""
        return f"eval/{self.set}/{self.metric}"

    def score(self, evaluation: Mapping[str, float]) -> float | None:
        """The higher the better; None where it was not measured or is not a number."""
        value = evaluation.get(self.key, math.nan)
        if math.isnan(value):
            return None
        return value if self.mode == "max" else -value


@final
@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """When to save, what to keep, and how.

    Args:
        every_steps: save after every so many training steps; 0 is never.
        every_minutes: save after the first step that ends so many minutes after the last save; 0 is never.
        at_end: also save when the run ends or is interrupted.
        keep_last: how many of the newest to keep; 0 keeps all.
        best: also save after each evaluation that was better than all before, and keep that checkpoint.
        export_hf: include a Hugging Face export of the policy.
        in_background: training goes on while files are written, from a copy of models and optimizers in host memory
            (12 bytes per parameter in float32 with AdamW, 16 in bfloat16). Off, it waits for the disk.
        timeout_s: longest that writing one may take.
    """

    every_steps: int = 0
    every_minutes: float = 0.0
    at_end: bool = True
    keep_last: int = 2
    best: Best | None = None
    export_hf: bool = True
    in_background: bool = True
    timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        for name, value in (
            ("every_steps", self.every_steps),
            ("every_minutes", self.every_minutes),
            ("keep_last", self.keep_last),
        ):
            if not value >= 0:
                raise ValueError(f"checkpoint.{name} must be >= 0, got {value}")
        if not self.timeout_s > 0:
            raise ValueError(f"checkpoint.timeout_s must be > 0, got {self.timeout_s}")

    @property
    def is_periodic(self) -> bool:
        """Whether the default policy saves before the end."""
        return self.every_steps > 0 or self.every_minutes > 0 or self.best is not None

    def is_due(self, step: int, *, is_last: bool, seconds_since_save: float) -> bool:
        """Whether the default policy saves after ``step`` steps."""
        if is_last and self.at_end:
            return True
        is_step = self.every_steps > 0 and step % self.every_steps == 0
        return is_step or 0 < 60 * self.every_minutes <= seconds_since_save
