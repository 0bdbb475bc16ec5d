"""IcePop: leave out tokens on which trainer and engine disagree (Ring-1T, arXiv 2510.18855).

    k = pi_proximal / pi_behaviour
    loss = M(k) max(-A rho, -A clip(rho)),     M(k) = k within [lower, upper], else 0

What is left out stays in denominators. Advantages and clip are GRPO's.

| published | ours | why |
|---|---|---|
| k in [0.5, 5] | [0.5, 5] | |
"""

from __future__ import annotations

from typing import Any

from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.rejection import Rejection


class IcePop(GRPO):
    """GRPO on the tokens whose off-policy weight is within bounds.

    Args:
        rejection: bounds on the off-policy weight, and what happens beyond.
    """

    def __init__(
        self, *, rejection: Rejection | None = Rejection(action="mask", lower=0.5, upper=5.0), **grpo: Any
    ) -> None:
        super().__init__(rejection=rejection, **grpo)
