"""M2PO: mask by the second moment of the off-policy log-ratio, for stale data (arXiv 2510.01161).

    m_t = (log pi - log behaviour)^2
    pushed on: A > 0 and pi > behaviour, or A < 0 and pi < behaviour
    of the tokens pushed on drop the largest m_t of the step until the mean of the rest is below m2_threshold
    loss = -keep exp(log pi - log behaviour) A,     no clip of the ratio

The moment is taken over the whole step, of the recomputed proximal policy: the current one's at the first mini-batch,
where the paper takes it. Tokens of equal moment go together. What is dropped stays in denominators. Where all of the
step would go, the tokens of the smallest moment stay.

A token that is not pushed on has moved against its advantage, so its gradient brings the policy back, and it stays
however far it is. With A < 0 its ratio may be anything up to e^20: ``effective_sample_size`` tells what such tokens
leave of the others, ``ratio_behaviour_max`` how far they are.

| published | ours | why |
|---|---|---|
| threshold 0.04 | 0.04 | |
| of all tokens; in its authors' code of those pushed on | ``among`` pushed_on | decision 0020 |
| that code bounds the ratio, never tighter than 0.7 to 1.5 | tokens are dropped | as the paper states it |
| moment of the current policy | of the proximal one | a selection over the step needs one policy for all of it |
| advantages of GRPO | as grpo | |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from areal_lit.token_batch import masked_metric
from areal_lit_algorithms.pieces.ratios import ratio
from areal_lit_algorithms.pieces.rejection import weight_metrics
from areal_lit_algorithms.pieces.second_moment import within_second_moment
from areal_lit_algorithms.policy_gradient import PolicyGradient

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.contracts.algorithm import Need
    from areal_lit.token_batch import Dim, TokenBatch
    from areal_lit.types import Metric


class M2PO(PolicyGradient):
    """Correct for the behaviour policy by the plain ratio, and leave out those pushed on that make it vary most.

    Args:
        m2_threshold: bound on the mean squared log-ratio of the tokens that stay.
        among: the tokens that are selected from: ``pushed_on``, those that moved the way their advantage pushes, or
            ``all``.
    """

    def __init__(
        self,
        *,
        m2_threshold: float = 0.04,
        among: Literal["pushed_on", "all"] = "pushed_on",
        **policy_gradient: Any,
    ) -> None:
        super().__init__(decoupled=False, old="behaviour", proximal="recompute", rejection=None, **policy_gradient)
        if not m2_threshold > 0:
            raise ValueError(f"m2_threshold must be > 0, got {m2_threshold}")
        self.m2_threshold = m2_threshold
        self.among = among

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | {"proximal"}

    @property
    def columns(self) -> Mapping[str, Dim]:
        return {**super().columns, "kept": "T"}

    def prepare(self, batch: TokenBatch) -> TokenBatch:
        batch = super().prepare(batch)
        mask_T, log_ratio_T = batch["loss_mask"], batch["proximal"] - batch["logprob"]
        judged_T = mask_T if self.among == "all" else mask_T & (batch["advantage"] * log_ratio_T > 0)
        is_all_judged = bool((judged_T == mask_T).all())
        kept_N = within_second_moment(log_ratio_T[judged_T], self.m2_threshold, keep_smallest=is_all_judged)
        return batch.with_columns(kept=mask_T.masked_scatter(judged_T, kept_N))

    def loss(self, logprob_T: Tensor, old_T: Tensor, batch: TokenBatch) -> tuple[Tensor, tuple[Metric, ...]]:
        mask_T, kept_T = batch["loss_mask"], batch["kept"].to(logprob_T.dtype)
        weight_T = kept_T * ratio(logprob_T - old_T)
        metrics = (masked_metric("m2_dropped", 1 - kept_T, mask_T), *weight_metrics(weight_T, mask_T))
        return -weight_T * batch["advantage"], metrics
