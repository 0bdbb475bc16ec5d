"""DPO on the contracts, thin: pairs as atoms, a reference, a loss per atom (arXiv 2305.18290).

Shapes: T packed tokens, S segments, A atoms (pairs).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch

from areal_lit.contracts.algorithm import Algorithm, Need
from areal_lit.text import TextCodec
from areal_lit.token_batch import Dim, Loss, Objective, TokenBatch, TokenOutputs, masked_metric
from areal_lit.types import Prompt, Trajectory


class DPO(Algorithm):
    """Raise the chosen completion over the rejected one, relative to the reference.

    Args:
        beta: how far the policy may move from the reference; larger is nearer.
    """

    offline: ClassVar[bool] = True

    def __init__(self, *, beta: float = 0.1) -> None:
        self.beta = beta

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"reference"})

    @property
    def columns(self) -> Mapping[str, Dim]:
        return {"sign": "S"}

    def encode(self, prompt: Prompt, codec: TextCodec) -> list[Trajectory]:
        start = codec.encode_prompt(prompt.example)
        return [
            self._side(prompt, start, codec.encode(prompt.fields[name]), sign, sample)
            for sample, (name, sign) in enumerate((("chosen", 1.0), ("rejected", -1.0)))
        ]

    def _side(self, prompt: Prompt, start: np.ndarray, completion: np.ndarray, sign: float, sample: int) -> Trajectory:
        ids = np.concatenate([start, completion])
        return Trajectory(
            token_ids=ids,
            loss_mask=np.arange(len(ids)) >= len(start),
            logprobs=np.zeros(len(ids), dtype=np.float32),
            versions=np.full(len(ids), -1),
            prompt=prompt,
            sample=sample,
            atom=0,
            columns={"sign": sign},
        )

    def prepare(self, batch: TokenBatch) -> TokenBatch:
        return batch

    def weigh(self, minibatch: TokenBatch) -> TokenBatch:
        is_trained_A = minibatch.atom_sum(minibatch.loss_tokens_S) > 0
        return minibatch.with_columns(atom_weight=is_trained_A.float() / is_trained_A.sum().clamp(min=1))

    def objectives(self) -> Mapping[str, Objective]:
        return {"policy": self.pair_loss}

    def pair_loss(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        """``-log sigmoid(beta (chosen - rejected))`` of the log-ratios to the reference, per pair."""
        assert outputs.logprob_T is not None
        mask_T = batch["loss_mask"]
        log_ratio_T = outputs.logprob_T.where(mask_T, 0.0) - batch["reference"].where(mask_T, 0.0)
        margin_A = batch.atom_sum(batch["sign"] * batch.segment_sum(log_ratio_T))
        is_trained_A = batch.atom_sum(batch.loss_tokens_S) > 0
        return Loss(
            values=-torch.nn.functional.logsigmoid(self.beta * margin_A),
            per="atom",
            metrics=(masked_metric("pair_accuracy", (margin_A > 0).float(), is_trained_A),),
        )
