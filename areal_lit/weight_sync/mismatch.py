"""MismatchAlarm: whether engine and trainer agree about the probability of tokens.

Shapes: n tokens of one sequence, T packed tokens of a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from areal_lit.token_batch import TokenBatch
from areal_lit.types import FloatArray, Metric
from areal_lit.weight_sync.settings import WeightSync

logger = logging.getLogger(__name__)

DEFAULT_LIMITS = {"float32": (1e-3, 1e-2)}
LOW_PRECISION_LIMITS = (0.05, 0.25)
MISMATCH = "train/logprob_mismatch"


class MismatchError(RuntimeError):
    """Engine and trainer disagree about the probability of tokens by more than the limit."""


class MismatchAlarm:
    """Watches that engine and trainer agree on tokens drawn with the very weights they are scored with.

    Args:
        settings: with the limits: a mean absolute difference above the first is logged, above the second raises.
        dtype: the weights are served in; decides limits that are not set.
    """

    def __init__(self, settings: WeightSync, *, dtype: str) -> None:
        warn, abort = DEFAULT_LIMITS.get(dtype, LOW_PRECISION_LIMITS)
        if settings.abort_above is not None:
            abort = settings.abort_above
            warn = min(warn, abort)
        if settings.warn_above is not None:
            warn = settings.warn_above
            abort = max(warn, abort)
        self.warn_above = warn
        self.abort_above = abort

    def check(self, batch: TokenBatch, version: int) -> list[Metric]:
        """Behaviour against proximal log-probs over the loss tokens of ``version``, the weights ``proximal`` is from.

        Without such tokens nothing is judged. Raises MismatchError.
        """
        chosen_T = batch["loss_mask"] & (batch["version"] == version)
        behaviour, proximal = batch["logprob"][chosen_T].numpy(), batch["proximal"][chosen_T].numpy()
        return self.judge(behaviour, proximal, MISMATCH, f"the batch trained on at version {version}")

    def judge(self, engine: FloatArray, trainer: FloatArray, name: str, where: str) -> list[Metric]:
        """Mean (``name``) and largest (``name_max``) absolute difference of two arrays [n]. Raises MismatchError."""
        if not len(engine):
            return []
        difference = np.abs(np.asarray(engine, dtype=np.float64) - np.asarray(trainer, dtype=np.float64))
        mean = Metric(name=name, sum=float(difference.sum()), count=float(len(engine)))
        largest = Metric(name=f"{name}_max", sum=float(difference.max()), reduction="max")
        self.judge_metrics(mean, largest, where)
        return [mean, largest]

    def check_metrics(self, metrics: Sequence[Metric], version: int) -> None:
        """The same for a step whose ranks compared their current log-probs, where there are no proximal ones."""
        found = {metric.name: metric for metric in metrics}
        if MISMATCH in found:
            self.judge_metrics(found[MISMATCH], found[f"{MISMATCH}_max"], f"the step trained on at version {version}")

    def judge_metrics(self, mean: Metric, largest: Metric, where: str) -> None:
        """Warn or raise MismatchError, as the mean says."""
        message = (
            f"log-probs of engine and trainer differ by {mean.value:.3g} on average (largest {largest.value:.3g}, "
            f"{mean.count:.0f} tokens) in {where}; the limits are {self.warn_above:g} (warn) and "
            f"{self.abort_above:g} (end)"
        )
        if not mean.value <= self.abort_above:  # NaN ends the run too
            raise MismatchError(
                f"{message}. The engine holds other weights than the trainer, reuses old KV, or computes otherwise; "
                "if the difference is right for this precision, raise sync.abort_above"
            )
        if mean.value > self.warn_above:
            logger.warning("%s", message)
