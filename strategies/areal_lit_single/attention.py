"""Attention within segments of a packed row, through transformers' attention interface.

The layout reaches the layers through an attribute of their modules: gradient checkpointing recomputes layers on
another thread, where neither a context variable nor a thread-local would be seen, and not every model passes unknown
keyword arguments down.

Shapes: P positions, H query heads, K key and value heads, D head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from areal_lit_single.layout import Bucket, Layout

PACKED = "areal_lit_packed"
VARLEN = "areal_lit_varlen"
UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Keyword arguments of models whose attention is more than softmax(q k) v."""


class CurrentLayout:
    """The layout of the micro-batch now in the model, shared by all its attention modules."""

    def __init__(self) -> None:
        self.layout: Layout | None = None
        self.num_calls = 0
        self.masks: dict[tuple[int, int, int], Tensor] = {}

    def set(self, layout: Layout) -> None:
        """Take the next micro-batch. It stays until its backward is done, for recomputed layers."""
        self.layout = layout
        self.masks.clear()

    def mask(self, bucket: Bucket, window: int | None, device: torch.device) -> Tensor | None:
        """True where a query may look, [length, prefix + length]; None where plain causality says it all.

        A query looks at the prompt before its row, at itself and earlier tokens of its row, and with a window at no
        more than ``window`` of them.
        """
        total = bucket.prefix + bucket.length
        if window is None or window >= total:
            window = total
            if not bucket.prefix:
                return None
        key = (bucket.length, bucket.prefix, window)
        if key not in self.masks:
            index = torch.arange(total, device=device)
            distance = index[bucket.prefix :, None] - index[None, :]
            self.masks[key] = (distance >= 0) & (distance < window)
        return self.masks[key]


def install(model: nn.Module) -> CurrentLayout:
    """Register both attentions with transformers and give every module of ``model`` access to the layout."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    for name, function in ((PACKED, packed_attention), (VARLEN, varlen_attention)):
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, no_mask)
    current = CurrentLayout()
    for module in model.modules():
        module.areal_lit_layout = current
    return current


def no_mask(*args: Any, **kwargs: Any) -> None:
    """The layout says all a mask could."""


def _layout_of(module: nn.Module, query: Tensor, kwargs: dict[str, Any]) -> tuple[CurrentLayout, Layout]:
    extras = [name for name in UNSUPPORTED if kwargs.get(name) is not None]
    if extras:
        raise ValueError(
            f"{type(module).__name__} attends with {', '.join(extras)}, which packed attention lacks; "
            'set attention="padded"'
        )
    current: CurrentLayout = module.areal_lit_layout
    layout = current.layout
    assert layout is not None
    assert query.shape[2] == layout.source_P.shape[0]
    current.num_calls += 1
    return current, layout


def packed_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, *,
    scaling: float | None = None, sliding_window: int | None = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Causal attention, one SDPA call per bucket; [1, H, P, D] in, [1, P, H, D] out."""
    current, layout = _layout_of(module, query, kwargs)
    sizes = [bucket.num_rows * bucket.length for bucket in layout.buckets]
    outputs = []
    pieces = zip(*(x[0].split(sizes, dim=1) for x in (query, key, value)), strict=True)
    for bucket, piece in zip(layout.buckets, pieces, strict=True):
        q, k, v = (x.unflatten(1, (bucket.num_rows, bucket.length)).transpose(0, 1) for x in piece)
        if bucket.prefix:
            k, v = (torch.cat([_prompts(x[0], bucket), own], dim=2) for x, own in ((key, k), (value, v)))
        mask = current.mask(bucket, sliding_window, q.device)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
        )
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return joined[None], None


def _prompts(x_KPD: Tensor, bucket: Bucket) -> Tensor:
    """Keys or values of the prompt before each row, [rows, K, prefix, D]."""
    assert bucket.prefix_row_R is not None
    num_prompts = int(bucket.prefix_row_R.max()) + 1
    block = x_KPD[:, bucket.prefix_start : bucket.prefix_start + num_prompts * bucket.prefix]
    return block.unflatten(1, (num_prompts, bucket.prefix)).transpose(0, 1).index_select(0, bucket.prefix_row_R)


def varlen_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, *,
    scaling: float | None = None, sliding_window: int | None = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The same by torch's variable-length flash attention; needs CUDA and half precision."""
    from torch.nn.attention.varlen import varlen_attn

    _, layout = _layout_of(module, query, kwargs)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    longest = max(bucket.length for bucket in layout.buckets)
    window = (-1 if sliding_window is None else sliding_window - 1, 0)
    out = varlen_attn(
        q, k, v, layout.cumulative, layout.cumulative, longest, longest, scale=scaling, window_size=window
    )
    return out[None], None
