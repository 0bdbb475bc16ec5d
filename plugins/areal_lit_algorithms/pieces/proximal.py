"""The proximal policy, that of the start of a step: recomputed, or estimated from behaviour and current policy.

Shapes: T packed tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from areal_lit.token_batch import masked_metric

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.token_batch import TokenBatch
    from areal_lit.trainer import Trainer
    from areal_lit.types import Metric

ProximalWay = Literal["recompute", "loglinear", "linear", "current", "compare"]
"""``recompute``: one forward pass at the start of the step. ``loglinear``, ``linear``: between behaviour and current
policy, by versions. ``current``: the current policy. ``compare``: recompute, and report how far the others are."""

RECOMPUTED: tuple[ProximalWay, ...] = ("recompute", "compare")


def proximal_logprob(way: ProximalWay, logprob_T: Tensor, batch: TokenBatch) -> Tensor:
    """Log-probs of the proximal policy without gradient, [T].

    Args:
        logprob_T: of the current policy.
        batch: with the column ``proximal`` for ``recompute`` and ``compare``; with the scalar ``step`` for ``linear``
            and ``loglinear``, whose proximal version is that step and whose current version the one it makes.
    """
    if way in RECOMPUTED:
        return batch["proximal"].to(logprob_T.dtype)
    if way == "current":
        return logprob_T.detach()
    alpha_T = version_share(batch["version"], batch.scalars["step"] + 1).to(logprob_T.dtype)
    return interpolated(way, logprob_T, batch["logprob"].to(logprob_T.dtype), alpha_T)


def proximal_rules(way: ProximalWay, trainer: Trainer) -> Iterable[str]:
    """Why the current policy would not be the one that a step starts from, if so."""
    if way == "current" and trainer.num_minibatches > 1:
        yield (
            f"proximal is 'current', which is right for one mini-batch only, but num_minibatches is "
            f"{trainer.num_minibatches}: set it to 1, or proximal to 'recompute'"
        )


def version_share(version_T: Tensor, trained_version: float) -> Tensor:
    """How far from the behaviour policy (0) to the one being trained (1) the policy one version before it lies.

    ``clamp((v - 1 - v_behaviour) / (v - v_behaviour), 0, 1)`` for trained version v, 1 where v_behaviour is v; [T].
    """
    behind_T = trained_version - version_T.double()
    share_T = (behind_T - 1) / behind_T.where(behind_T != 0, 1.0)
    return share_T.clamp(0, 1).where(behind_T != 0, 1.0)


def interpolated(way: ProximalWay, logprob_T: Tensor, behaviour_T: Tensor, alpha_T: Tensor) -> Tensor:
    """Between behaviour (``alpha`` 0) and current (1) policy, of log-probs or (``linear``) of probabilities; [T]."""
    current_T = logprob_T.detach()
    if way == "loglinear":
        return behaviour_T + alpha_T * (current_T - behaviour_T)
    assert way == "linear"
    return (behaviour_T + (1 - alpha_T).log()).logaddexp(current_T + alpha_T.log())


def compared(logprob_T: Tensor, batch: TokenBatch) -> tuple[Metric, ...]:
    """Mean distance of each estimate from the recomputed log-probs, in nats per token."""
    mask_T, exact_T = batch["loss_mask"], batch["proximal"]
    ways: tuple[ProximalWay, ...] = ("loglinear", "linear", "current")
    return tuple(
        masked_metric(f"proximal_gap_{way}", (proximal_logprob(way, logprob_T, batch) - exact_T).abs(), mask_T)
        for way in ways
    )
