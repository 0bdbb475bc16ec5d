"""On-policy distillation: what the student samples, its teacher judges (GKD, arXiv 2306.13649; MiniLLM, 2306.08543).

    loss_t = rl_weight * RL_t + distill_weight * D_t             RL_t: GRPO's loss of token t

With q the student, p the teacher, y_t the token drawn after y_<t, r the ratio of q to the policy that drew it:

    compare     D_t                                                                    gradient, expected over y_t
    sampled     -r(y_t) (log p(y_t) - sg log q(y_t) - mean)                            of KL(q, p)
    top_k       divergence over the teacher's k likeliest tokens and the rest as one   its own, of a lower bound
    vocabulary  divergence over the whole vocabulary                                   its own, exact

``sampled`` is a policy gradient with the reward log p - sg log q of each token for itself: earlier tokens get no credit
for later ones (MiniLLM's long-horizon term). Where teachers are sure of themselves nearly all rewards are far below 0,
so their mean over the step is subtracted (``centred``): the same gradient in expectation, with much less noise. Its
gradient is that of k2, (log q - log p)^2 / 2; adding log q - log p itself to an RL loss (k1) would teach nothing: its
gradient has zero mean. The other two have no noise from the draw of y_t, so no ratio enters them; what they cannot
correct is which prefixes stale tokens lead to.

Teacher and student are both taken at the sample's temperature, on loss tokens alone.

| published | ours | why |
|---|---|---|
| GKD: any divergence, lambda of the data on-policy | all data on-policy | off-policy data is ``sft`` |
| no gradient through the draw of y_t (GKD) | the same | |
| MiniLLM mixes the teacher into sampling | no | tokens come from the engine as it is |
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from areal_lit.token_batch import masked_metric
from areal_lit_algorithms.grpo import GRPO
from areal_lit_algorithms.pieces.divergences import DivergenceKind, contributions, topk_divergence
from areal_lit_algorithms.pieces.kl import estimate
from areal_lit_algorithms.pieces.ratios import masked, ratio

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.contracts.algorithm import Need
    from areal_lit.token_batch import Loss, TokenBatch, TokenOutputs
    from areal_lit.types import Metric

NEED_OF_COMPARED: dict[str, Need] = {"sampled": "teacher", "top_k": "topk", "vocabulary": "divergence"}


class Distill(GRPO):
    """Move the policy toward a teacher on the policy's own samples, alone or beside a reward.

    Args:
        rl_weight: of GRPO's loss; 0 is pure distillation, for which rewards are only numbers to look at.
        distill_weight: of the divergence from the teacher.
        divergence: ``reverse_kl`` from the policy to the teacher, ``forward_kl`` back, ``jensen_shannon`` between.
        beta: the teacher's share of the mixture in jensen_shannon.
        compare: the ``sampled`` token, the teacher's ``top_k`` likeliest tokens, or the whole ``vocabulary``.
        top_k: how many tokens ``top_k`` compares one by one; all others count as one.
        centred: subtract the step's mean from the rewards of sampled tokens.
        decoupled: clip around the proximal policy and correct for the behaviour policy by a weight.
        old: the policy in the ratio's denominator when not decoupled.
    """

    def __init__(
        self,
        *,
        rl_weight: float = 0.0,
        distill_weight: float = 1.0,
        divergence: DivergenceKind = "reverse_kl",
        beta: float = 0.5,
        compare: Literal["sampled", "top_k", "vocabulary"] = "sampled",
        top_k: int = 64,
        centred: bool = True,
        decoupled: bool = False,
        old: Literal["proximal", "behaviour"] = "behaviour",
        **grpo: Any,
    ) -> None:
        super().__init__(decoupled=decoupled, old=old, **grpo)
        if not 0 <= rl_weight < math.inf:
            raise ValueError(f"rl_weight must be finite and >= 0 (0 is pure distillation), got {rl_weight}")
        if not 0 < distill_weight < math.inf:
            raise ValueError(f"distill_weight must be finite and > 0, got {distill_weight}; without a teacher use grpo")
        if not 0 < beta < 1:
            raise ValueError(f"beta must be in (0, 1), got {beta}; its ends are forward_kl (0) and reverse_kl (1)")
        if top_k < 1:
            raise ValueError(f"top_k must be >= 1, got {top_k}")
        if compare == "sampled" and divergence != "reverse_kl":
            raise ValueError(
                f"the sampled token estimates the reverse_kl alone, got divergence {divergence!r}; set compare to "
                "top_k or vocabulary"
            )
        self.rl_weight = rl_weight
        self.distill_weight = distill_weight
        self.divergence = divergence
        self.beta = beta
        self.compare = compare
        self.top_k = top_k
        self.centred = centred

    def prepare(self, batch: TokenBatch) -> TokenBatch:
        batch = super().prepare(batch)
        if self.compare != "sampled":
            return batch
        old_T = batch["proximal"] if "proximal" in batch else batch["logprob"]
        reward_N = (batch["teacher"] - old_T)[batch["loss_mask"]].double()
        is_centred = self.centred and reward_N.numel() > 0
        return batch.with_scalars(teacher_baseline=float(reward_N.mean()) if is_centred else 0.0)

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | {NEED_OF_COMPARED[self.compare]}

    @property
    def num_topk(self) -> int:
        return self.top_k

    @property
    def uses_rewards(self) -> bool:
        return self.rl_weight > 0

    def pointwise_divergence(self, logprob: Tensor, teacher: Tensor) -> Tensor:
        return contributions(self.divergence, logprob, teacher, beta=self.beta)

    def loss(self, logprob_T: Tensor, old_T: Tensor, batch: TokenBatch) -> tuple[Tensor, tuple[Metric, ...]]:
        """Both losses of the sampled token; ``old`` is what the ratio refers to."""
        rl_T, metrics = super().loss(logprob_T, old_T, batch)
        if self.compare != "sampled":
            return self.rl_weight * rl_T, metrics
        reward_T = masked(batch["teacher"].to(logprob_T.dtype), batch["loss_mask"]) - logprob_T.detach()
        reward_T = reward_T - batch.scalars["teacher_baseline"]
        return self.rl_weight * rl_T - self.distill_weight * ratio(logprob_T - old_T) * reward_T, metrics

    def policy_objective(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        loss, mask_T = super().policy_objective(outputs, batch), batch["loss_mask"]
        divergence_T = self.divergence_of(outputs, batch)
        if self.compare != "sampled":
            loss = replace(loss, values=loss.values + self.distill_weight * divergence_T.to(loss.values.dtype))
        return replace(loss, metrics=(*loss.metrics, masked_metric("teacher_divergence", divergence_T, mask_T)))

    def divergence_of(self, outputs: TokenOutputs, batch: TokenBatch) -> Tensor:
        """Of the policy from the teacher after each prefix, [T]; of the sampled token the estimate k3."""
        mask_T = batch["loss_mask"]
        if self.compare == "sampled":
            assert outputs.logprob_T is not None
            log_ratio_T = masked(outputs.logprob_T.detach() - batch["teacher"], mask_T)
            return estimate(log_ratio_T, "k3")
        if self.compare == "top_k":
            assert outputs.topk_logprob_TK is not None
            pair = (masked(x_TK, mask_T[:, None]) for x_TK in (outputs.topk_logprob_TK, batch["topk_logprob"]))
            return topk_divergence(self.divergence, *pair, beta=self.beta)
        assert outputs.divergence_T is not None
        return masked(outputs.divergence_T, mask_T)
