"""DAPO: GRPO with four changes for long chains of thought (arXiv 2503.14476).

    clip-higher         clip(rho, 1 - 0.2, 1 + 0.28): rare tokens may grow
    dynamic sampling    groups of equal rewards are dropped and replaced, judged on the raw rewards
    token-level loss    mean over all tokens of the step
    overlong shaping    r + max(-factor, -(length - (L - b)) / b * factor), for length > L - b

Dynamic sampling is the filter ``equal_rewards``: what it rejects frees its staleness capacity and is counted.

| published | ours | why |
|---|---|---|
| clip 0.2 / 0.28 | 0.2 / 0.28 | |
| L = 20480, b = 4096, factor 1 | to be given: L and b are of the task | |
| no KL | ``kl_weight`` 0 | |
| deviation unspecified | n - 1, ``eps`` 1e-6 | as verl |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.shaping import Shaping

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


class DAPO(GRPO):
    """Clip higher, drop groups that teach nothing, weigh tokens alike, discourage what runs into the budget.

    Args:
        reward_shaping: with ``overlong``, whose ``max_length`` is the generation budget.
        dynamic_sampling: insist on the filter equal_rewards.
        clip_high: the ratio is kept below 1 + clip_high.
    """

    def __init__(
        self, *, reward_shaping: Shaping, dynamic_sampling: bool = True, clip_high: float = 0.28, **grpo: Any
    ) -> None:
        super().__init__(reward_shaping=reward_shaping, clip_high=clip_high, **grpo)
        self.dynamic_sampling = dynamic_sampling

    def rules(self, trainer: Trainer) -> Iterable[str]:
        from areal_lit_filters.equal_rewards import EqualRewards

        yield from super().rules(trainer)
        if self.dynamic_sampling and not any(isinstance(filter_, EqualRewards) for filter_ in trainer.filters):
            yield (
                "dynamic_sampling drops groups of equal rewards by a filter, and filters has no equal_rewards: add "
                "`filters: [equal_rewards]`, or set dynamic_sampling to false"
            )
