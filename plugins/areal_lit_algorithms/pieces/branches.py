"""Conversations that branch: in which other sequences of its episode a turn goes on.

Shapes: S segments, N loss tokens in order within each segment. A row is the place of a loss token among them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.token_batch import TokenBatch

Ways = Mapping[int, Sequence[int]]
"""Row of the last loss token of a turn -> rows of the first ones of the sequences in which it goes on."""


def ways_on(batch: TokenBatch, token_N: Tensor) -> Ways:
    """Where turns go on in other sequences; empty where conversations do not branch.

    A sequence goes on from every copy of its ``parent_turn`` among the sequences of its group and sample. One without
    loss tokens is nowhere: nothing is known of what it earned.

    Args:
        token_N: indices of the loss tokens.
    """
    if not len(token_N) or not bool((batch["parent_turn"] >= 0).any()):
        return {}
    segment_N, turn_N = batch["segment"][token_N], batch["turn"][token_N]
    is_end_N = (segment_N != segment_N.roll(-1)) | (turn_N != turn_N.roll(-1))
    is_end_N[-1] = True
    is_first_N = segment_N != segment_N.roll(1)
    is_first_N[0] = True
    end_of = {(int(segment_N[row]), int(turn_N[row])): row for row in is_end_N.nonzero()[:, 0].tolist()}
    episode_S = list(zip(batch["group"].tolist(), batch["sample"].tolist(), strict=True))
    ends = defaultdict(list)
    for (segment, turn), row in end_of.items():
        ends[*episode_S[segment], turn].append(row)
    ways = defaultdict(list)
    for first in is_first_N.nonzero()[:, 0].tolist():
        segment = int(segment_N[first])
        for row in ends.get((*episode_S[segment], int(batch["parent_turn"][segment])), ()):
            ways[row].append(first)
    return ways


def depths(ways: Ways, segment_N: Tensor, num_segments: int) -> list[int]:
    """How many sequences lie before each, at most; [S]. Raises ValueError for a sequence that goes on from itself."""
    pairs = {(int(segment_N[row]), int(segment_N[first])) for row, firsts in ways.items() for first in firsts}
    depth_S = [0] * num_segments
    for _ in range(num_segments):
        late = [(parent, child) for parent, child in pairs if depth_S[child] <= depth_S[parent]]
        if not late:
            return depth_S
        for parent, child in late:
            depth_S[child] = max(depth_S[child], depth_S[parent] + 1)
    raise ValueError(
        "a sequence goes on from a turn that goes on from itself; parent_turn is a turn of an earlier sequence of the "
        "episode"
    )
