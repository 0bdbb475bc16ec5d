"""Where each packed token stands in what the model is given.

Segments are sorted by length, so equal ones lie side by side and attention takes each run as one batch, without
copies. Runs of nearly equal length share a batch when that costs fewer padding tokens than a kernel call is worth.
A prompt that several segments begin with is a row of its own; their rows hold only what follows it.

Shapes: T packed tokens, P positions given to the model (fewer than T where prompts are shared), S segments, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

CALL_COST_TOKENS = 4
"""Padding tokens worth one attention call less; measured on a four-layer model of hidden size 128 on a CPU."""


@dataclass(frozen=True)
class Bucket:
    """Rows of equal length, side by side.

    Args:
        num_rows: how many.
        length: positions of each row.
        prefix: tokens of a shared prompt that each row follows; 0 for none.
        prefix_start: position of the first of all prompts with that length; they lie side by side.
        prefix_row_R: which of those prompts each row follows, [num_rows].
    """

    num_rows: int
    length: int
    prefix: int = 0
    prefix_start: int = 0
    prefix_row_R: Tensor | None = None


@dataclass(frozen=True)
class Layout:
    """Rows of equal length, bucket after bucket.

    Args:
        buckets: their sizes add up to P.
        place_T: position in P of each packed token; tokens of a shared prompt have the same.
        source_P: a packed token at each position; -1 is padding.
        position_P: position within its segment, running on over padding.
    """

    buckets: tuple[Bucket, ...]
    place_T: Tensor
    source_P: Tensor
    position_P: Tensor

    def tokens(self, token_T: Tensor) -> Tensor:
        """Ids at each position; padding holds id 0, which no real token attends to, [P]."""
        return torch.where(self.source_P < 0, 0, token_T[self.source_P.clamp(min=0)])

    @cached_property
    def cumulative(self) -> Tensor:
        """Row borders, int32 [rows + 1], for kernels that take them; without shared prompts."""
        lengths = [bucket.length for bucket in self.buckets for _ in range(bucket.num_rows)]
        return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)

    def to(self, device: torch.device) -> Layout:
        """The same layout with its tensors on ``device``."""
        if device.type == "cpu":
            return self
        buckets = tuple(
            bucket if bucket.prefix_row_R is None else replace(bucket, prefix_row_R=bucket.prefix_row_R.to(device))
            for bucket in self.buckets
        )
        moved = Layout(buckets, *(x.to(device) for x in (self.place_T, self.source_P, self.position_P)))
        moved.__dict__["cumulative"] = self.cumulative.to(device)
        return moved


def padded(length_S: Tensor) -> Layout:
    """One bucket: every segment padded to the longest, in their own order."""
    kept_R = (length_S > 0).nonzero().flatten()
    buckets = (Bucket(int(kept_R.numel()), int(length_S.max())),) if kept_R.numel() else ()
    return _place(length_S, torch.zeros_like(length_S), kept_R, kept_R, buckets, num_prefix_rows=0)


def bucketed(
    length_S: Tensor,
    prefix_S: Tensor | None = None,
    leader_S: Tensor | None = None,
    *,
    call_cost_tokens: int = CALL_COST_TOKENS,
) -> Layout:
    """The layout of packed segments with these lengths: shared prompts first, then segments, longest first.

    Args:
        prefix_S: leading tokens of each segment that it shares with its leader, 0 for none.
        leader_S: the segment that the shared tokens are taken from.
    """
    if prefix_S is None or leader_S is None:
        prefix_S, leader_S = torch.zeros_like(length_S), torch.arange(length_S.numel())
    own_S = length_S - prefix_S
    prompt_R = torch.unique(leader_S[prefix_S > 0])
    prompt_R = prompt_R[prefix_S[prompt_R].argsort(descending=True, stable=True)]
    order_S = own_S.argsort(descending=True, stable=True)
    order_S = order_S[prefix_S[order_S].argsort(descending=True, stable=True)]
    segment_R = order_S[own_S[order_S] > 0]
    prompts = _runs(prefix_S[prompt_R], torch.zeros_like(prompt_R), call_cost_tokens=0)
    buckets = prompts + _runs(own_S[segment_R], prefix_S[segment_R], call_cost_tokens=call_cost_tokens)
    buckets = _with_prompts(buckets, len(prompts), prompt_R, leader_S[segment_R])
    return _place(length_S, prefix_S, leader_S, torch.cat([prompt_R, segment_R]), buckets, len(prompt_R))


def _runs(length_R: Tensor, prefix_R: Tensor, *, call_cost_tokens: int) -> tuple[Bucket, ...]:
    """Buckets of sorted rows: equal ones together, and nearly equal ones where padding is cheap."""
    pairs_R2 = torch.stack([prefix_R, length_R], dim=1)
    distinct, counts = torch.unique_consecutive(pairs_R2, return_counts=True, dim=0)
    buckets: list[Bucket] = []
    for (prefix, length), count in zip(distinct.tolist(), counts.tolist(), strict=True):
        last = buckets[-1] if buckets else None
        if last and last.prefix == prefix and (last.length - length) * count <= call_cost_tokens:
            buckets[-1] = replace(last, num_rows=last.num_rows + count)
        else:
            buckets.append(Bucket(count, length, prefix))
    return tuple(buckets)


def _with_prompts(
    buckets: tuple[Bucket, ...], num_prompt_buckets: int, prompt_R: Tensor, leader_R: Tensor
) -> tuple[Bucket, ...]:
    """The buckets with where the prompts of each lie."""
    if not num_prompt_buckets:
        return buckets
    blocks: dict[int, tuple[int, int]] = {}
    row = start = 0
    for bucket in buckets[:num_prompt_buckets]:
        blocks[bucket.length] = (start, row)
        start, row = start + bucket.num_rows * bucket.length, row + bucket.num_rows
    row_of_S = torch.zeros(int(prompt_R.max()) + 1, dtype=torch.long)
    row_of_S[prompt_R] = torch.arange(prompt_R.numel())
    complete = list(buckets[:num_prompt_buckets])
    first = 0
    for bucket in buckets[num_prompt_buckets:]:
        if bucket.prefix:
            start, first_prompt = blocks[bucket.prefix]
            rows = row_of_S[leader_R[first : first + bucket.num_rows]] - first_prompt
            bucket = replace(bucket, prefix_start=start, prefix_row_R=rows)
        first += bucket.num_rows
        complete.append(bucket)
    return tuple(complete)


def _place(
    length_S: Tensor, prefix_S: Tensor, leader_S: Tensor, row_S: Tensor, buckets: tuple[Bucket, ...],
    num_prefix_rows: int,
) -> Layout:  # fmt: skip
    """Places for rows in this order: ``row_S`` names each row's segment, prompts before segments."""
    width_R = torch.tensor([b.length for b in buckets for _ in range(b.num_rows)], dtype=torch.long)
    num_positions = int(width_R.sum())
    start_R = width_R.cumsum(0) - width_R
    prompt_start_S, own_start_S = torch.zeros_like(length_S), torch.zeros_like(length_S)
    prompt_start_S[row_S[:num_prefix_rows]] = start_R[:num_prefix_rows]
    own_start_S[row_S[num_prefix_rows:]] = start_R[num_prefix_rows:]
    segment_T = torch.repeat_interleave(length_S)
    first_S = length_S.cumsum(0) - length_S
    token_T = torch.arange(segment_T.numel())
    position_T = token_T - first_S[segment_T]
    in_prefix_T = position_T < prefix_S[segment_T]
    if num_prefix_rows:
        shared_T = prompt_start_S[leader_S][segment_T] + position_T
        own_T = own_start_S[segment_T] + position_T - prefix_S[segment_T]
        place_T = torch.where(in_prefix_T, shared_T, own_T)
    else:
        place_T = own_start_S[segment_T] + position_T
    source_P = torch.full((num_positions,), -1, dtype=torch.long)
    source_P[place_T] = token_T
    begin_R = torch.cat([torch.zeros_like(start_R[:num_prefix_rows]), prefix_S[row_S[num_prefix_rows:]]])
    position_P = torch.arange(num_positions) - torch.repeat_interleave(start_R - begin_R, width_R)
    return Layout(buckets, place_T, source_P, position_P)
