"""Aggregation of the token loss as one weight per token, for a whole mini-batch at once.

Shapes: T packed tokens, S segments, G groups of the mini-batch. Denominators are counts of ``loss_mask``, so
dropped and unscored samples are out, and off-policy rejection does not change them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.token_batch import TokenBatch

Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum", "group_mean", "constant"]


def token_weights(minibatch: TokenBatch, aggregation: Aggregation, *, max_length: int | None = None) -> Tensor:
    """The weight of each token's loss, 0 outside ``loss_mask``; float32 [T].

    Args:
        aggregation: ``token_mean``: over all loss tokens (DAPO). ``sequence_mean``: mean over each sequence, then
            over sequences (GRPO's paper). ``sequence_sum``: sum over each sequence, mean over sequences (RLOO).
            ``group_mean``: mean over each group's tokens, then over groups. ``constant``: sum divided by (number of
            sequences x ``max_length``) (Dr. GRPO).
        max_length: the longest completion there can be; for ``constant`` only.
    """
    mask_T = minibatch["loss_mask"].double()
    tokens_S = minibatch.loss_tokens_S.double()
    sequences = (tokens_S > 0).sum().clamp(min=1)
    if aggregation == "token_mean":
        weight_T = mask_T / mask_T.sum().clamp(min=1)
    elif aggregation == "sequence_mean":
        weight_T = mask_T / minibatch.to_tokens(tokens_S.clamp(min=1)) / sequences
    elif aggregation == "sequence_sum":
        weight_T = mask_T / sequences
    elif aggregation == "group_mean":
        index_S = minibatch.group_index_S
        tokens_G = tokens_S.new_zeros(len(tokens_S)).index_add(0, index_S, tokens_S)
        groups = (tokens_G > 0).sum().clamp(min=1)
        weight_T = mask_T / minibatch.to_tokens(tokens_G.clamp(min=1)[index_S]) / groups
    elif aggregation == "constant":
        check_max_length(aggregation, max_length)
        assert max_length is not None
        weight_T = mask_T / (sequences * max_length)
    else:
        raise ValueError(f"aggregation must be one of {', '.join(get_args(Aggregation))}, got {aggregation!r}")
    return weight_T.float()


def check_max_length(aggregation: Aggregation, max_length: int | None) -> None:
    """Raise ValueError when ``constant`` lacks its length or another aggregation was given one."""
    if (aggregation == "constant") != (max_length is not None):
        raise ValueError(
            f"max_length belongs to aggregation 'constant' and to no other, got aggregation {aggregation!r} with "
            f"max_length {max_length}; give constant the generation budget, or leave max_length out"
        )
    if max_length is not None and max_length < 1:
        raise ValueError(f"max_length must be >= 1, got {max_length}")
