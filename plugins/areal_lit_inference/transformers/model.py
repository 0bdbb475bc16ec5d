"""The Hugging Face model inside the engine: loading, refusing what it cannot serve, and taking new weights."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from areal_lit.models import check_finite, load_causal_lm
from areal_lit.types import IntArray, ModelSpec, TensorInfo
from areal_lit_inference.transformers.slots import ATTENTION, Decode, Prefill, SlotCache, Span, pack, register_attention

PARITY_LIMIT = 0.02
"""Largest log-prob difference to the model's own attention that a supported model may show."""
PARITY_NOISE = 2.0
"""The same in units of what the model's own two attentions differ by: bfloat16 over many layers exceeds any number."""


class ServedModel:
    """A causal language model whose attention reads the slots.

    Args:
        spec: the weights to start from.
        dtype: computed and stored type; the spec's by default.
        device: ``auto`` takes CUDA if there is one.
    """

    def __init__(self, spec: ModelSpec, *, dtype: str | None = None, device: str = "auto") -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        register_attention()
        self.device = torch.device(device)
        self.model = load_causal_lm(spec, dtype=dtype, attn_implementation=ATTENTION).to(self.device)
        self.model.requires_grad_(False)
        self.config = self.model.config.get_text_config()
        self.base: nn.Module = self.model.base_model
        self.head: nn.Module = self.model.get_output_embeddings()
        self.vocab_size: int = self.head.weight.shape[0]
        self.parameters: dict[str, Tensor] = dict(self.model.named_parameters(remove_duplicate=False))
        self.max_length: int = self.config.max_position_embeddings
        refuse_unsupported(self.model, self.config)

    def range_problem(self, token_ids: IntArray) -> str:
        """That token ids lie outside the vocabulary; empty if none do."""
        smallest, largest = token_ids.min(), token_ids.max()
        if smallest < 0 or largest >= self.vocab_size:
            return f"token ids must be in [0, {self.vocab_size}), got {smallest} to {largest}"
        return ""

    def new_cache(self, max_slots: int) -> SlotCache:
        """An empty cache of this model's shape."""
        config = self.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return SlotCache(
            num_layers=config.num_hidden_layers, num_heads=config.num_key_value_heads, head_dim=head_dim,
            max_slots=max_slots, max_length=self.max_length, dtype=self.model.dtype, device=self.device,
        )  # fmt: skip

    def hidden(self, token_BT: Tensor, position_BT: Tensor, plan: Prefill | Decode) -> Tensor:
        """Last hidden states, [B, T, hidden]."""
        output = self.base(input_ids=token_BT, position_ids=position_BT, use_cache=False, plan=plan)
        return cast(Tensor, output.last_hidden_state)

    def logits(self, token_BT: Tensor, position_BT: Tensor, plan: Prefill | Decode) -> Tensor:
        """[B, T, vocabulary]."""
        return self.project(self.hidden(token_BT, position_BT, plan))

    def project(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states, [..., vocabulary]."""
        return cast(Tensor, self.head(hidden))

    def check_finite(self) -> None:
        """Raise ValueError for weights with NaN or infinity among them."""
        check_finite(self.model)

    def check_parity(self) -> None:
        """Compare a short prefill and a decode step with the model's own forward pass; ValueError if they differ.

        Catches architectures that scale or cap logits, or whose attention is not plain causal attention.
        """
        token_1T = torch.arange(1, 9, device=self.device)[None] % self.vocab_size
        position_1T = torch.arange(8, device=self.device)[None]
        cache = self.new_cache(1)
        cache.reserve(1, 8)
        slot = torch.zeros(1, dtype=torch.long, device=self.device)
        prefill = self.logits(token_1T[:, :7], position_1T[:, :7], Prefill(cache, pack([7], [[0]], self.device)))
        decode = self.logits(
            token_1T[:, 7:], position_1T[:, 7:], Decode(cache, slot + 7, [Span(first=0, stop=1, length=8)])
        )
        own, other = (self._own_logits(token_1T, attention) for attention in ("sdpa", "eager"))
        difference, noise = _difference(torch.cat([prefill, decode], 1), own), _difference(own, other)
        allowed = max(PARITY_LIMIT, PARITY_NOISE * noise)
        if not difference <= allowed:
            raise ValueError(
                f"model type {self.config.model_type!r} computes something the transformers engine does not: log-probs "
                f"differ by {difference:.3g} from its own forward pass, allowed is {allowed:.3g}; use another backend"
            )

    def _own_logits(self, token_1T: Tensor, attention: str) -> Tensor:
        self.model.set_attn_implementation(attention)
        try:
            return cast(Tensor, self.model(input_ids=token_1T, use_cache=False).logits)
        finally:
            self.model.set_attn_implementation(ATTENTION)

    def check_names(self, tensors: Iterable[TensorInfo]) -> None:
        """Raise ValueError unless these are exactly the model's weights, tied ones under any of their names."""
        covered = set()
        for info in tensors:
            covered.add(id(self._target(info.name, tuple(info.shape))))
        self._check_complete(covered)

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Copy every tensor into its parameter. Raises ValueError, possibly half-way, if they cannot be served."""
        covered = set()
        with torch.no_grad():
            for name, tensor in tensors:
                target = self._target(name, tuple(tensor.shape))
                target.copy_(tensor)
                covered.add(id(target))
        self._check_complete(covered)
        self.check_finite()

    def _target(self, name: str, shape: tuple[int, ...]) -> Tensor:
        target = self.parameters.get(name)
        if target is None:
            raise ValueError(f"weights for {name!r} arrived, but the served model has no such parameter")
        if tuple(target.shape) != shape:
            raise ValueError(f"{name} must have shape {tuple(target.shape)}, got {shape}")
        return target

    def _check_complete(self, covered: set[int]) -> None:
        missing = [name for name, p in self.model.named_parameters() if id(p) not in covered]
        if missing:
            raise ValueError(f"weights are missing for {len(missing)} parameters: {', '.join(missing[:5])}")


def _difference(logits: Tensor, others: Tensor) -> float:
    """Largest difference of log-probs."""
    return float((logits.float().log_softmax(-1) - others.float().log_softmax(-1)).abs().max())


def refuse_unsupported(model: Any, config: Any) -> None:
    """Raise ValueError for models whose layers are not all full attention."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ValueError(
            f"model type {config.model_type!r} has layers of kind {sorted(kinds)}; the transformers engine serves "
            "full causal attention only. Use another inference backend"
        )
    if not hasattr(model, "get_output_embeddings") or model.get_output_embeddings() is None:
        raise ValueError(f"model type {config.model_type!r} has no output head to sample from")


def load_receiver(path: str) -> Any:
    """An instance of ``pkg.module:Class``."""
    module, _, name = path.partition(":")
    if not name:
        raise ValueError(f"a receiver is named 'pkg.module:Class', got {path!r}")
    return getattr(importlib.import_module(module), name)()
