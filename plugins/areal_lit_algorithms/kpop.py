"""KPop: leave out tokens by a divergence instead of a ratio (Guo et al., Ant Group, 2026; ringtech.notion.site/kpop).

    b = the larger of KL(Bernoulli(p) || Bernoulli(q)) and KL(Bernoulli(q) || Bernoulli(p))
    loss = [b <= upper] k max(-A rho, -A clip(rho)),     k = p / q, p proximal and q behaviour probability of the token

The ratio of two tiny probabilities is large where next to nothing was at stake, and there b is small: rare tokens stay,
at a weight k without a bound of its own: ``rejection.weight_cap`` is one (verl's DPPO, with the same mask: 20), and
``effective_sample_size`` tells whether it is needed. What is left out stays in denominators. Advantages and clip are
GRPO's.

| published | ours | why |
|---|---|---|
| a mask of 0 and 1; in the code that its authors gave AReaL times k | times k | ``decoupled`` false leaves k out |
| upper (phi) 2 in the example that its authors gave AReaL | 2 | as there; prime-rl: 0.1 as its text, far stricter |
"""

from __future__ import annotations

from typing import Any

from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.rejection import Rejection


class KPop(GRPO):
    """GRPO on the tokens that trainer and engine find about equally likely to be drawn.

    Args:
        rejection: bounds on the divergence, and what happens beyond.
    """

    def __init__(
        self, *, rejection: Rejection | None = Rejection(action="mask", metric="binary_kl", upper=2.0), **grpo: Any
    ) -> None:
        super().__init__(rejection=rejection, **grpo)
