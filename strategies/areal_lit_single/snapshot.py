"""Snapshots of a network and its optimizer: copied to host memory in one go, written while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from areal_lit.checkpointing.tensors import load_state, map_tensors, save_state
from areal_lit.contracts.strategy import Snapshot
from areal_lit.types import ModelSpec
from areal_lit_single.building import export
from areal_lit_single.network import Network

STATE_FILE = "rank-0.safetensors"


class HostCopies:
    """Copies states into host memory that stays allocated from one copy to the next.

    The first use of fresh memory costs five times as much as a copy into it: the kernel clears every page.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._preparing: threading.Thread | None = None

    def prepare(self, state: Any) -> None:
        """Begin to allocate memory for states like this one, on a thread."""
        shapes = map_tensors(state, lambda path, tensor: tensor.detach())
        self._preparing = threading.Thread(
            target=lambda: map_tensors(shapes, lambda path, tensor: self._buffer(path, tensor).zero_()),
            name="areal-lit-host-copies",
            daemon=True,
        )
        self._preparing.start()

    def copy(self, state: Any) -> Any:
        """The state with its tensors copied; they are overwritten by the next copy."""
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None
        copied = map_tensors(state, lambda path, tensor: self._buffer(path, tensor).copy_(tensor, non_blocking=True))
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return copied

    def _buffer(self, path: str, tensor: Tensor) -> Tensor:
        buffer = self._buffers.get(path)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._buffers[path] = buffer
        return buffer


class SingleSnapshot(Snapshot):
    """A copied state.

    Args:
        state: as ``write_state`` takes it.
        network: gives the export its configuration; its weights are not read.
    """

    def __init__(self, state: Mapping[str, Any], network: Network, spec: ModelSpec) -> None:
        self._state = state
        self._network = network
        self._spec = spec

    def save(self, directory: Path) -> None:
        write_state(self._state, directory)

    def export_hf(self, directory: Path) -> None:
        export(self._network, self._state["weights"], self._spec, directory)


def size_of(state: Any) -> int:
    """Bytes of all its tensors."""
    sizes: list[int] = []
    map_tensors(state, lambda path, tensor: sizes.append(tensor.nbytes))
    return sum(sizes)


def write_state(state: Mapping[str, Any], directory: Path) -> None:
    save_state(state, directory / STATE_FILE)


def read_state(directory: Path, device: torch.device) -> Any:
    return load_state(directory / STATE_FILE, device=device)
