"""Building a network from a model spec, and writing it out again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from areal_lit.checkpointing.tensors import as_os_error
from areal_lit.contracts.strategy import Head
from areal_lit.models import (
    SCALAR_HEAD_FILE,
    SCALAR_HEAD_PREFIX,
    check_finite,
    load_causal_lm,
    load_tokenizer,
    resolve,
    without_progress_bars,
)
from areal_lit.types import ModelSpec
from areal_lit_single.network import Attention, Network


def build_network(
    spec: ModelSpec, *, head: Head, device: Literal["auto", "cpu", "cuda"], attention: Attention, local_rank: int = 0
) -> Network:
    """The model in eval mode on its device, with a float32 scalar head for ``value`` and ``score``."""
    kind = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError('device="cuda" but torch sees no CUDA device; set device to "cpu" or "auto"')
    place = torch.device("cuda", local_rank) if kind == "cuda" else torch.device("cpu")
    lm = load_causal_lm(spec).to(place)
    scalar_head = None if head == "lm" else scalar_head_for(spec, lm.get_output_embeddings().in_features).to(place)
    for module in (lm, scalar_head):
        if module is not None:
            check_finite(module)
    return Network(lm, scalar_head=scalar_head, attention=attention)


def scalar_head_for(spec: ModelSpec, hidden_size: int) -> nn.Linear:
    """The head saved beside the model, else one with small weights from ``init_seed``: values start near 0."""
    linear = nn.Linear(hidden_size, 1, dtype=torch.float32)
    saved = Path(resolve(spec.path)) / SCALAR_HEAD_FILE
    if spec.config is None and saved.exists():
        from safetensors.torch import load_file

        linear.load_state_dict(load_file(saved))
        return linear
    generator = torch.Generator().manual_seed(spec.init_seed)
    with torch.no_grad():
        linear.weight.normal_(0.0, 0.02, generator=generator)
        linear.bias.zero_()
    return linear


def trained_parameters(network: Network, *, freeze: Sequence[str]) -> dict[str, nn.Parameter]:
    """Parameters to train by name; all others stop requiring gradients.

    An output embedding of its own is never trained under a scalar head, which does not use it. Raises ValueError for
    a pattern that matches nothing, or when nothing is left.
    """
    named = {name.removeprefix("lm."): parameter for name, parameter in network.named_parameters()}
    unused = [pattern for pattern in freeze if not any(fnmatchcase(name, pattern) for name in named)]
    if unused:
        raise ValueError(f"freeze: {unused[0]!r} matches no parameter; names look like {next(iter(named))!r}")
    unreached: set[int] = set()
    if network.scalar_head is not None:
        inputs = {id(parameter) for parameter in network.lm.get_input_embeddings().parameters()}
        unreached = {id(parameter) for parameter in network.lm.get_output_embeddings().parameters()} - inputs
    for name, parameter in named.items():
        is_frozen = id(parameter) in unreached or any(fnmatchcase(name, pattern) for pattern in freeze)
        parameter.requires_grad_(not is_frozen)
    trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    if not trained and list(freeze) != ["*"]:
        raise ValueError(f"freeze={list(freeze)} leaves no parameter to train; give the role no optimizer instead")
    return trained


def checkpoint_layers(lm: nn.Module) -> None:
    """Recompute each decoder layer in backward. Only the layers themselves enter training mode: dropout stays off."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    keywords = {"use_reentrant": False}
    if hasattr(lm, "activation_checkpointing_enable"):
        lm.activation_checkpointing_enable(activation_checkpointing_kwargs=keywords)
    else:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs=keywords)
    layers = [module for module in lm.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(f"{type(lm).__name__} cannot recompute its layers; set gradient_checkpointing to false")
    for layer in layers:
        layer.training = True
        for name in [name for name, value in vars(layer).items() if "drop" in name and isinstance(value, float)]:
            setattr(layer, name, 0.0)


def export(network: Network, weights: Mapping[str, Tensor], spec: ModelSpec, directory: Path) -> None:
    """A directory that ``AutoModelForCausalLM.from_pretrained`` loads, with the tokenizer and any scalar head.

    Args:
        network: what is exported; its own weights are not read.
        weights: each once under its Hugging Face name, those of a scalar head as ``score.NAME``.

    Raises OSError when a file cannot be written.
    """
    from safetensors.torch import save_file

    prefix = SCALAR_HEAD_PREFIX
    of_head = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    of_lm = {name: tensor for name, tensor in weights.items() if not name.startswith(prefix)}
    with as_os_error(directory):
        with without_progress_bars():
            network.lm.save_pretrained(directory, state_dict=of_lm)
        load_tokenizer(spec).save_pretrained(directory)
        if network.scalar_head is not None:
            save_file(of_head, directory / SCALAR_HEAD_FILE)
