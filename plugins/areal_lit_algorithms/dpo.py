"""DPO: preferences without a reward model (arXiv 2305.18290), as logistic, squared (IPO) or hinge loss.

Shapes: T packed tokens, S segments (sides), A atoms (pairs).

| published | ours | why |
|---|---|---|
| ``beta`` 0.1 (0.5 for summaries) | 0.1 | the value of most of the paper's runs, and of packages |
| IPO (arXiv 2310.12036): summed log-ratios, target 1 / (2 beta) | their means per token, same target | its authors' own runs; sums would square the length |
| hinge: SLiC (arXiv 2305.10425) on log-probs, with its own margin | on ``beta`` times log-ratios, margin 1 | as RSO (arXiv 2309.06657) |
| one epoch, RMSprop, learning rate 1e-6 | the recipe's | small beside other fine-tuning: the loss saturates |
"""  # noqa: E501

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from areal_lit.contracts.algorithm import Need
from areal_lit.token_batch import Loss, TokenBatch, TokenOutputs
from areal_lit_algorithms.pairs import PairAlgorithm, margin, pair_metrics

if TYPE_CHECKING:
    from torch import Tensor


class DPO(PairAlgorithm):
    """Make the chosen completion likelier than the rejected one, each measured against the reference.

    With log-ratio r = log p(side) - log p_reference(side), a side's reward is ``beta`` r, and the loss of a pair with
    margin m = r(chosen) - r(rejected) is

    - ``sigmoid``: -log sigmoid(``beta`` m)
    - ``ipo``: (m - 1 / (2 ``beta``))^2, with r the mean per token
    - ``hinge``: max(0, 1 - ``beta`` m)

    Before the first step policy and reference agree: every margin is 0 and ``pair_accuracy``, which counts ties as
    wrong, too. A chosen side whose reward falls while the margin grows is common: the rejected one falls faster.

    Args:
        loss: sigmoid, ipo or hinge.
        beta: how far the policy may move from the reference; larger is nearer.
    """

    def __init__(
        self, *, loss: Literal["sigmoid", "ipo", "hinge"] = "sigmoid", beta: float = 0.1, **pairs: Any
    ) -> None:
        super().__init__(**pairs)
        if loss not in ("sigmoid", "ipo", "hinge"):
            raise ValueError(f"loss must be sigmoid, ipo or hinge, got {loss!r}")
        if not 0 < beta < math.inf:
            raise ValueError(f"beta must be finite and > 0, got {beta}")
        self.loss = loss
        self.beta = beta

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"reference"})

    def pair_loss(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        assert outputs.logprob_T is not None
        log_ratio_T = (outputs.logprob_T - batch["reference"]).where(batch["loss_mask"], 0.0)
        log_ratio_S = batch.segment_sum(log_ratio_T)
        compared_S = batch.segment_mean(log_ratio_T) if self.loss == "ipo" else log_ratio_S
        values_A = self._of_margin(margin(compared_S, batch))
        return Loss(values=values_A, per="atom", metrics=pair_metrics(self.beta * log_ratio_S, batch))

    def _of_margin(self, margin_A: Tensor) -> Tensor:
        from torch.nn.functional import logsigmoid

        if self.loss == "sigmoid":
            return -logsigmoid(self.beta * margin_A)
        if self.loss == "ipo":
            return (margin_A - 1 / (2 * self.beta)).square()
        return (1 - self.beta * margin_A).relu()
