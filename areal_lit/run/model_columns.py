"""Columns of a step's batch that models fill before the algorithm sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from areal_lit.contracts import Algorithm, Output
from areal_lit.contracts.algorithm import Need
from areal_lit.roles import RoleGroup
from areal_lit.run.teacher import TeacherClient
from areal_lit.token_batch import TokenBatch
from areal_lit.validation import ROLE_OF_NEED


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """What a model is asked for.

    Args:
        columns: name -> the field of ``TokenOutputs`` that it is.
    """

    output: Output
    columns: Mapping[str, str]


FILLED: Mapping[Need, Filled] = {
    "proximal": Filled(output="logprob", columns={"proximal": "logprob_T"}),
    "reference": Filled(output="logprob", columns={"reference": "logprob_T"}),
    "teacher": Filled(output="logprob", columns={"teacher": "logprob_T"}),
    "topk": Filled(output="topk", columns={"topk_token": "topk_token_TK", "topk_logprob": "topk_logprob_TK"}),
    "values": Filled(output="value", columns={"value": "value_T", "final_value": "final_value_S"}),
}
"""Needs that become columns; those left out are asked for in the objective's outputs."""


def with_model_columns(
    batch: TokenBatch, algorithm: Algorithm, models: Mapping[str, RoleGroup | TeacherClient]
) -> TokenBatch:
    """The batch with what the algorithm needs from models, one forward pass for each need.

    Args:
        models: by role, on ranks or served.
    """
    for need, filled in FILLED.items():
        if need in algorithm.needs:
            asked = batch.with_scalars(topk=algorithm.num_topk) if need == "topk" else batch
            out = models[ROLE_OF_NEED.get(need, "policy")].forward(asked, frozenset({filled.output}))
            batch = batch.with_columns(**{name: getattr(out, field) for name, field in filled.columns.items()})
    return batch
