"""Where each packed token stands in what the model is given.

Segments are sorted by length, so equal ones lie side by side and attention takes each run as one batch, without
copies. Runs of nearly equal length share a batch when that costs fewer padding tokens than a kernel call is worth.

Shapes: T packed tokens, P positions given to the model (T plus padding), S segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

CALL_COST_TOKENS = 4
"""Padding tokens worth one attention call less; measured on a four-layer model of hidden size 128 on a CPU."""


@dataclass(frozen=True)
class Layout:
    """Rows of equal length, bucket after bucket.

    Args:
        buckets: (rows, length of each row) in order; their products add up to P.
        place_T: position in P of each packed token.
        source_P: packed token at each position; -1 is padding.
        position_P: position within its row, running on over padding.
    """

    buckets: tuple[tuple[int, int], ...]
    place_T: Tensor
    source_P: Tensor
    position_P: Tensor

    def tokens(self, token_T: Tensor) -> Tensor:
        """Ids at each position; padding holds id 0, which no real token attends to, [P]."""
        return torch.where(self.source_P < 0, 0, token_T[self.source_P.clamp(min=0)])

    @cached_property
    def cumulative(self) -> Tensor:
        """Row borders, int32 [rows + 1], for kernels that take them."""
        lengths = [length for rows, length in self.buckets for _ in range(rows)]
        return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)

    def to(self, device: torch.device) -> Layout:
        """The same layout with its tensors on ``device``."""
        if device.type == "cpu":
            return self
        moved = Layout(self.buckets, *(x.to(device) for x in (self.place_T, self.source_P, self.position_P)))
        moved.__dict__["cumulative"] = self.cumulative.to(device)
        return moved


def bucketed(length_S: Tensor, *, call_cost_tokens: int = CALL_COST_TOKENS) -> Layout:
    """The layout of packed segments with these lengths, longest first."""
    order = length_S.argsort(descending=True, stable=True)
    distinct, counts = torch.unique_consecutive(length_S[order], return_counts=True)
    buckets: list[tuple[int, int]] = []
    for length, count in zip(distinct.tolist(), counts.tolist(), strict=True):
        if length == 0:
            continue
        if buckets and (buckets[-1][1] - length) * count <= call_cost_tokens:
            buckets[-1] = (buckets[-1][0] + count, buckets[-1][1])
        else:
            buckets.append((count, length))
    return _place(length_S, order, buckets)


def padded(length_S: Tensor) -> Layout:
    """One bucket: every segment padded to the longest, in their own order."""
    kept = (length_S > 0).nonzero().flatten()
    buckets = [(int(kept.numel()), int(length_S.max()))] if kept.numel() else []
    return _place(length_S, kept, buckets)


def _place(length_S: Tensor, order: Tensor, buckets: list[tuple[int, int]]) -> Layout:
    row_lengths = torch.tensor([length for rows, length in buckets for _ in range(rows)], dtype=torch.long)
    num_positions = int(row_lengths.sum())
    row_start = row_lengths.cumsum(0) - row_lengths
    start_S = torch.zeros_like(length_S)
    start_S[order[: row_start.numel()]] = row_start
    first_S = length_S.cumsum(0) - length_S
    token_T = torch.arange(int(length_S.sum()))
    place_T = token_T + torch.repeat_interleave(start_S - first_S, length_S)
    source_P = torch.full((num_positions,), -1, dtype=torch.long)
    source_P[place_T] = token_T
    position_P = torch.arange(num_positions) - torch.repeat_interleave(row_start, row_lengths)
    return Layout(tuple(buckets), place_T, source_P, position_P)
