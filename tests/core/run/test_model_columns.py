"""Which model is asked for which column of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from areal_lit.batching import pack
from areal_lit.run.model_columns import with_model_columns
from areal_lit.testing.toy import RaggedGroups
from areal_lit.token_batch import TokenBatch, TokenOutputs

K = 3


@dataclass
class Said:
    """A model whose every answer is its number."""

    number: float

    def forward(self, batch: TokenBatch, outputs: frozenset[str]) -> TokenOutputs:
        x_T = torch.full((batch.num_tokens,), self.number)
        (output,) = outputs
        if output == "logprob":
            return TokenOutputs(logprob_T=x_T)
        if output == "value":
            return TokenOutputs(value_T=x_T, final_value_S=torch.full((batch.num_segments,), -self.number))
        x_TK = x_T[:, None].expand(-1, int(batch.scalars["topk"]))
        return TokenOutputs(topk_token_TK=x_TK.long(), topk_logprob_TK=-x_TK)


MODELS: Any = {name: Said(number) for number, name in enumerate(("policy", "reference", "teacher", "critic"), 1)}


@dataclass
class Asking:
    needs: frozenset[str]
    num_topk: int = K


@pytest.mark.parametrize(
    ("need", "expected"),
    [
        ("proximal", {"proximal": 1}),
        ("reference", {"reference": 2}),
        ("teacher", {"teacher": 3}),
        ("topk", {"topk_token": 3, "topk_logprob": -3}),
        ("values", {"value": 4, "final_value": -4}),
        ("entropy", {}),
        ("divergence", {}),
    ],
)
def test_each_need_is_answered_by_its_model(need: str, expected: dict[str, float]) -> None:
    batch = pack(RaggedGroups().draw(np.random.default_rng(0)))
    asking: Any = Asking(frozenset({need}))
    filled = with_model_columns(batch, asking, MODELS)
    added = {name: column for name, column in filled.columns.items() if name not in batch}
    assert {name: set(column.flatten().tolist()) for name, column in added.items()} == {
        name: {number} for name, number in expected.items()
    }
    assert all(column.shape[1:] == ((K,) if need == "topk" else ()) for column in added.values())
    assert "topk" not in filled.scalars
