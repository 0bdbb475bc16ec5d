"""Which segments of a micro-batch begin with the same prompt, so that the model need read it only once.

Shapes: T packed tokens, S segments.
"""

from __future__ import annotations

import torch
from torch import Tensor

from areal_lit.token_batch import TokenBatch


def shared_prefixes(batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """How many leading tokens each segment shares with others, and whose they are; both int64 [S].

    Segments of one group share what stands before the first loss token, if it is the same for them and for the first
    of them with loss tokens (the leader). A segment that shares nothing has 0.
    """
    length_S, segment_T = batch["length"], batch["segment"]
    alone_S = torch.arange(batch.num_segments)
    if "group" not in batch or not batch.num_tokens:
        return torch.zeros_like(length_S), alone_S
    prompt_S = _tokens_before_loss(batch)
    group_S = batch.group_index_S
    none = batch.num_segments
    candidate_S = alone_S.where(prompt_S > 0, none)
    first_G = alone_S.new_full((int(group_S.max()) + 1,), none).scatter_reduce(0, group_S, candidate_S, "amin")
    leader_S = first_G[group_S].where(first_G[group_S] < none, alone_S)
    first_S = length_S.cumsum(0) - length_S
    is_prompt_T = batch["position"] < prompt_S[segment_T]
    token_T = batch["token"]
    counterpart_T = (first_S[leader_S][segment_T] + batch["position"]).clamp(max=batch.num_tokens - 1)
    differs_T = is_prompt_T & (token_T != token_T[counterpart_T])
    shares_S = (prompt_S == prompt_S[leader_S]) & (batch.segment_sum(differs_T.long()) == 0) & (prompt_S > 0)
    has_followers_S = torch.zeros_like(length_S).index_add(0, leader_S, shares_S.long())[leader_S] > 1
    is_shared_S = shares_S & has_followers_S
    return prompt_S.where(is_shared_S, 0), leader_S.where(is_shared_S, alone_S)


def _tokens_before_loss(batch: TokenBatch) -> Tensor:
    """Tokens before the first loss token, int64 [S]; 0 for a segment without one."""
    length_S, segment_T = batch["length"], batch["segment"]
    far = int(length_S.max()) + 1
    position_T = batch["position"].where(batch["loss_mask"], far)
    first_S = torch.full_like(length_S, far).scatter_reduce(0, segment_T, position_T, "amin")
    return first_S.where(first_S < far, 0)
