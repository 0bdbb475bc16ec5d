"""What an algorithm makes of a batch, checked before ranks train on it.

Shapes: T packed tokens, S samples.
"""

from __future__ import annotations

from typing import Any

from areal_lit.contracts import Algorithm
from areal_lit.plugins.distributions import origin
from areal_lit.token_batch import TokenBatch


def prepared(algorithm: Algorithm, batch: TokenBatch) -> TokenBatch:
    """``algorithm.prepare`` of the step's batch. Raises TypeError or ValueError naming the algorithm for what cannot be
    trained on: no batch, tokens added to ``loss_mask``, NaN in a column of its own where there is a loss."""
    result = _narrowed(algorithm, "prepare", batch, algorithm.prepare(batch))
    trained = {"T": result["loss_mask"], "S": result.loss_tokens_S > 0}
    for name, dim in algorithm.columns.items():
        if name in result and dim in trained and (count := int(result[name][trained[dim]].isnan().sum())):
            raise ValueError(
                f"{origin(algorithm)}: prepare gave {count} NaN in column {name!r} where tokens are trained on; give "
                "numbers there, or take these tokens out of loss_mask"
            )
    return result


def weighed(algorithm: Algorithm, minibatch: TokenBatch) -> TokenBatch:
    """``algorithm.weigh`` of a mini-batch. Raises TypeError or ValueError naming the algorithm for weights that are no
    numbers, or on tokens that ``loss_mask`` leaves out."""
    result = _narrowed(algorithm, "weigh", minibatch, algorithm.weigh(minibatch))
    for name, weight in result.columns.items():
        if not name.endswith("_weight"):
            continue
        if count := int((~weight.isfinite()).sum()):
            raise ValueError(f"{origin(algorithm)}: weigh gave {count} values in {name!r} that are not finite")
        if result.dims[name] == "T" and (count := int((weight[~result["loss_mask"]] != 0).sum())):
            raise ValueError(
                f"{origin(algorithm)}: weigh gave {count} tokens outside loss_mask (prompts, dropped samples) a weight "
                f"in {name!r}; multiply it by loss_mask"
            )
    return result


def _narrowed(algorithm: Algorithm, method: str, given: TokenBatch, result: Any) -> TokenBatch:
    if not isinstance(result, TokenBatch):
        raise TypeError(f"{origin(algorithm)}: {method} must return a TokenBatch, got {type(result).__name__}")
    if count := int((result["loss_mask"] & ~given["loss_mask"]).sum()):
        raise ValueError(
            f"{origin(algorithm)}: {method} added {count} tokens to loss_mask, which nobody chose or whose sample was "
            "dropped; it may only take tokens out"
        )
    return result
