"""An algorithm with every role there is: policy and critic trained, reference and teacher frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from areal_lit.contracts.algorithm import Need
from areal_lit.token_batch import Loss, Objective, TokenBatch, TokenOutputs, masked_metric
from areal_lit_algorithms.dpo import DPO


class EveryRole(DPO):
    """DPO that reports what the frozen roles say, and a critic that learns which side was chosen."""

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"reference", "teacher", "values"})

    @property
    def heads(self) -> Mapping[str, Literal["lm", "value", "score"]]:
        return {"policy": "lm", "critic": "value"}

    def weigh(self, minibatch: TokenBatch) -> TokenBatch:
        return (
            super().weigh(minibatch).with_columns(segment_weight=(minibatch.loss_tokens_S > 0) / minibatch.num_segments)
        )

    def objectives(self) -> Mapping[str, Objective]:
        return {"policy": self.pair_loss, "critic": critic_loss}

    def pair_loss(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        loss, mask_T = super().pair_loss(outputs, batch), batch["loss_mask"]
        said = tuple(masked_metric(name, batch[name], mask_T) for name in ("reference", "teacher", "value"))
        return replace(loss, metrics=(*loss.metrics, *said))


def critic_loss(outputs: TokenOutputs, batch: TokenBatch) -> Loss:
    assert outputs.final_value_S is not None
    return Loss(values=(outputs.final_value_S - batch["sign"]).square(), per="segment")
