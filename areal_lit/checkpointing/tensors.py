"""Nested state with tensors in it: mapped over, and kept in a safetensors file.

A state is a tensor, a plain JSON value, or a dictionary, list or tuple of states; keys are text or integers, as in the
state of a torch optimizer. Loading one runs no code.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_TREE = "tree"
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def map_tensors(state: Any, change: Callable[[str, Tensor], Any], *, path: str = "") -> Any:
    """A copy of the state with each tensor changed.

    Args:
        change: given a tensor's path (``'optimizer'/'state'/3/'exp_avg'``), which no other has, and the tensor.
        path: of the state itself.
    """
    import torch

    def inside(key: Any, value: Any) -> Any:
        return map_tensors(value, change, path=f"{path}/{key!r}" if path else repr(key))

    if isinstance(state, torch.Tensor):
        return change(path, state)
    if isinstance(state, Mapping):
        return {key: inside(key, value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(inside(index, value) for index, value in enumerate(state))
    return state


def save_state(state: Any, file: Path) -> None:
    """Write a state. Raises OSError when the file cannot be written, TypeError for what is no state."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}

    def keep(path: str, tensor: Tensor) -> _Reference:
        tensors[path] = tensor.detach().contiguous()
        return _Reference(path)

    tree = _encode(map_tensors(state, keep))
    with as_os_error(file):
        save_file(tensors, file, metadata={_TREE: json.dumps(tree)})


@contextmanager
def as_os_error(path: Path) -> Iterator[None]:
    """Raise the OSError behind a SafetensorError, so that a full disk is known as one."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        found = _OS_ERROR.search(str(error))
        number, told = (int(found[1]), os.strerror(int(found[1]))) if found else (errno.EIO, str(error))
        raise OSError(number, told, str(path)) from error


def load_state(file: Path, *, device: Any = "cpu") -> Any:
    """The state that ``save_state`` wrote, with its tensors on a device."""
    from safetensors import safe_open

    with safe_open(file, framework="pt", device=str(device)) as opened:
        return _decode(json.loads(opened.metadata()[_TREE]), opened.get_tensor)


class _Reference(str):
    """Stands for a tensor in a state."""


def _encode(state: Any) -> Any:
    """Plain JSON that tells apart what JSON does not: tuples from lists, integer keys from text, tensors from text."""
    if isinstance(state, _Reference):
        return {"tensor": str(state)}
    if isinstance(state, Mapping):
        return {"dict": [[key, _encode(value)] for key, value in state.items()]}
    if isinstance(state, list | tuple):
        return {type(state).__name__: [_encode(value) for value in state]}
    return state


def _decode(tree: Any, tensor: Callable[[str], Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "tensor":
        return tensor(content)
    if kind == "dict":
        return {key: _decode(value, tensor) for key, value in content}
    return {"list": list, "tuple": tuple}[kind](_decode(value, tensor) for value in content)
