"""The slotted key/value cache, reached by a Hugging Face model through its attention function.

The model is called without a cache of its own: after the rotary embedding its layers call ``slot_attention``,
which stores the new keys and values in the slots and attends to them. So one prefill may hold documents of any
lengths without padding, and a decode step moves nothing but the new tokens.

Shapes: n active slots, H key/value heads, G queries per such head, D head size, S capacity, L longest length,
T packed prompt tokens, k documents of one length P.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ATTENTION = "areal_lit_slots"
"""The name ``slot_attention`` is registered under with transformers."""

LENGTH_BLOCK = 64


class SlotCache:
    """Keys and values of every layer, [slots * H, S, D]; both axes grow in blocks up to their bounds.

    Args:
        num_layers, num_heads, head_dim: of the model; ``num_heads`` counts key/value heads.
        max_slots: bound of the slot axis.
        max_length: bound of the length axis.
    """

    def __init__(
        self, *, num_layers: int, num_heads: int, head_dim: int, max_slots: int, max_length: int,
        dtype: torch.dtype, device: torch.device,
    ) -> None:  # fmt: skip
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.max_slots = max_slots
        self.max_length = max_length
        self.num_slots = 0
        self.length = 0
        empty = torch.empty(0, 0, head_dim, dtype=dtype, device=device)
        self.keys = [empty] * num_layers
        self.values = [empty] * num_layers

    @property
    def size_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in (*self.keys, *self.values))

    def reserve(self, num_slots: int, length: int) -> None:
        """Room for this many slots and positions. Copies what is there when an axis grows."""
        if num_slots <= self.num_slots and length <= self.length:
            return
        old = self.num_slots, self.length
        if num_slots > self.num_slots:
            grown = max(num_slots, 2 * self.num_slots, 8)
            self.num_slots = self.max_slots if 5 * grown >= 4 * self.max_slots else grown  # a last bit costs a copy too
        if length > self.length:
            blocks = -(-max(length, self.length * 5 // 4) // LENGTH_BLOCK)
            self.length = blocks * LENGTH_BLOCK
        for i in range(self.num_layers):
            self.keys[i] = self._grown(self.keys[i], old)
            self.values[i] = self._grown(self.values[i], old)

    def _grown(self, x: Tensor, old: tuple[int, int]) -> Tensor:
        # zeros, as a masked position still meets its value in 0 * value
        new = x.new_zeros(self.num_slots * self.num_heads, self.length, self.head_dim)
        new[: old[0] * self.num_heads, : old[1]] = x
        return new

    def view(self, x: Tensor) -> Tensor:
        """A layer's keys or values as [slots, H, S, D]."""
        return x.view(self.num_slots, self.num_heads, self.length, self.head_dim)

    def copy(self, sources: Iterable[int], targets: Iterable[int], length: int) -> None:
        """Copy slots' first ``length`` positions; a target must not be a source."""
        device = self.keys[0].device
        source, target = torch.tensor(list(sources), device=device), torch.tensor(list(targets), device=device)
        for x in (*self.keys, *self.values):
            slots = self.view(x)
            slots[target, :, :length] = slots[source, :, :length]

    def permute(self, order: Sequence[int], length: int) -> None:
        """Slot i takes the first ``length`` positions of slot ``order[i]``, for the first ``len(order)`` slots."""
        index = torch.tensor(order, device=self.keys[0].device)
        for x in (*self.keys, *self.values):
            slots = self.view(x)
            slots[: len(order), :, :length] = slots[index, :, :length]


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Documents of one length that lie one after another in a pack.

    Args:
        start: index of their first token.
        count, length: how many they are and how long.
        slots: where keys and values go; a document may go to many, or to none when it is only scored.
        document_of_slot: which of these documents each of ``slots`` gets.
    """

    start: int
    count: int
    length: int
    slots: Tensor
    document_of_slot: Tensor


def pack(lengths: Sequence[int], slots: Sequence[Sequence[int]], device: torch.device) -> list[Documents]:
    """Documents in order of their pack, runs of equal lengths together; document i is stored in ``slots[i]``."""
    documents, first, start = [], 0, 0
    for length, run in itertools.groupby(lengths):
        count = len(list(run))
        stored = [(slot, i) for i in range(count) for slot in slots[first + i]]
        index = torch.tensor(stored, dtype=torch.long, device=device).view(-1, 2)
        documents.append(
            Documents(start=start, count=count, length=length, slots=index[:, 0], document_of_slot=index[:, 1])
        )
        first, start = first + count, start + count * length
    return documents


class Prefill:
    """Causal attention within each document of a pack; stores keys and values in slots."""

    def __init__(self, cache: SlotCache | None, documents: Sequence[Documents]) -> None:
        self.cache = cache
        self.documents = documents

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """[1, H*G, T, D] queries to [1, T, H*G, D]."""
        output = query.new_empty(1, query.shape[2], query.shape[1], query.shape[3])
        for documents in self.documents:
            q, k, v = (self._split(x, documents) for x in (query, key, value))
            if self.cache is not None:
                for stored, new in ((self.cache.keys[layer], k), (self.cache.values[layer], v)):
                    self.cache.view(stored)[documents.slots, :, : documents.length] = new[documents.document_of_slot]
            groups = query.shape[1] // key.shape[1]
            if groups > 1:
                k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=documents.length > 1, scale=scaling)
            stop = documents.start + documents.count * documents.length
            output[0, documents.start : stop] = attended.transpose(1, 2).flatten(0, 1)
        return output

    @staticmethod
    def _split(x: Tensor, documents: Documents) -> Tensor:
        """[1, heads, T, D] to these documents' [k, heads, P, D]."""
        stop = documents.start + documents.count * documents.length
        return x[0, :, documents.start : stop].view(-1, documents.count, documents.length, x.shape[3]).transpose(0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Active slots ``first`` to ``stop`` whose longest length is ``length``."""

    first: int
    stop: int
    length: int


class Decode:
    """One new token per active slot. Each span of slots reads the cache up to its own longest length only."""

    def __init__(self, cache: SlotCache, length_n: Tensor, spans: Sequence[Span]) -> None:
        heads = cache.num_heads
        n = length_n.shape[0]
        first_nH = torch.arange(n * heads, device=length_n.device) * cache.length
        self.cache = cache
        self.target_nH = first_nH + length_n.repeat_interleave(heads)
        self.spans = [
            (slice(span.first * heads, span.stop * heads), span.length, self._bias(span, length_n)) for span in spans
        ]

    def _bias(self, span: Span, length_n: Tensor) -> Tensor:
        """0 at positions a row may see and -inf beyond, [rows * H, 1, L]."""
        position_L = torch.arange(span.length, device=length_n.device)
        hidden_nL = position_L > length_n[span.first : span.stop, None]
        bias_nL = torch.zeros(hidden_nL.shape, dtype=self.cache.keys[0].dtype, device=length_n.device)
        bias_nL.masked_fill_(hidden_nL, float("-inf"))
        return bias_nL.repeat_interleave(self.cache.num_heads, 0)[:, None]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """[n, H*G, 1, D] queries to [n, 1, H*G, D]."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        n, heads, _, dim = key.shape
        keys.view(-1, dim).index_copy_(0, self.target_nH, key.reshape(n * heads, dim))
        values.view(-1, dim).index_copy_(0, self.target_nH, value.reshape(n * heads, dim))
        query = query.reshape(n * heads, -1, dim)
        parts = []
        for rows, length, bias in self.spans:
            scores = torch.baddbmm(bias, query[rows], keys[rows, :length].transpose(1, 2), alpha=scaling)
            parts.append(torch.bmm(torch.softmax(scores, -1), values[rows, :length]))
        output = parts[0] if len(parts) == 1 else torch.cat(parts)
        return output.view(n, 1, -1, dim)


def slot_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, *,
    scaling: float | None = None, plan: Prefill | Decode, sliding_window: int | None = None, **options: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The attention function: hands a layer's projections to the plan of this call.

    Raises ValueError for attention that this cache does not compute.
    """
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if options.get(name) is not None]
    if sliding_window is not None or unknown:
        raise ValueError(
            f"the transformers engine computes plain causal attention only, and this model asks for "
            f"{unknown or ['sliding_window']}; serve it with another inference backend"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return plan.attend(module.layer_idx, query, key, value, scale), None


def register_attention() -> None:
    """Make ``slot_attention`` known to transformers. Without a mask function of that name, no mask is built."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, slot_attention)
