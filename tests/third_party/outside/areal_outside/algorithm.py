"""Rewarmed: REINFORCE whose baseline is a critic of its own, trained beside the policy.

Shapes: T packed tokens, S samples of the step.
"""

from __future__ import annotations

from areal_lit.contracts import Algorithm
from areal_lit.token_batch import Loss, masked_metric


class Rewarmed(Algorithm):
    """Weight each token's log-prob by reward minus the critic's value; teach the critic the reward.

    Args:
        temper: advantages are scaled by tanh(advantage / temper) * temper, so that outliers stay bounded.
    """

    def __init__(self, *, temper: float = 2.0) -> None:
        if temper <= 0:
            raise ValueError(f"temper must be > 0, got {temper}")
        self.temper = temper

    needs = frozenset({"values"})
    columns = {"tempered": "T", "target": "T"}
    heads = {"policy": "lm", "critic": "value"}

    def prepare(self, batch):
        target_T = batch.to_tokens(batch["reward"])
        advantage_T = target_T - batch["value"]
        return batch.with_columns(tempered=(advantage_T / self.temper).tanh() * self.temper, target=target_T)

    def weigh(self, minibatch):
        mask_T = minibatch["loss_mask"].float()
        return minibatch.with_columns(token_weight=mask_T / mask_T.sum().clamp(min=1))

    def objectives(self):
        return {"policy": self._policy, "critic": self._critic}

    def _policy(self, outputs, batch):
        tempered_T = batch["tempered"].where(batch["loss_mask"], 0.0)
        share = masked_metric("outside_share_positive", (tempered_T > 0).float(), batch["loss_mask"])
        return Loss(values=-tempered_T * outputs.logprob_T, metrics=(share,))

    def _critic(self, outputs, batch):
        error_T = (outputs.value_T - batch["target"]).where(batch["loss_mask"], 0.0) ** 2
        return Loss(values=error_T, metrics=(masked_metric("squared_error", error_T, batch["loss_mask"]),))
