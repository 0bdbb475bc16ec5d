"""Random states of this process: Python's, numpy's and torch's global generators, as plain JSON values.

The core draws nothing from them; plugins may.
"""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np


def capture() -> dict[str, Any]:
    """The states now; torch's only where it is in use."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "numpy": [kind, np.asarray(keys).tolist(), position, has_gauss, cached],
    }
    if (torch := sys.modules.get("torch")) is not None:
        state["torch"] = _text(torch.get_rng_state())
        if torch.cuda.is_initialized():
            state["cuda"] = [_text(device) for device in torch.cuda.get_rng_state_all()]
    return state


def restore(state: Mapping[str, Any]) -> None:
    """Go on from captured states. Those of GPUs are taken back where there are as many."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.asarray(keys, dtype=np.uint32), *rest))
    if "torch" in state:
        import torch

        torch.set_rng_state(_bytes(state["torch"]))
        if "cuda" in state and torch.cuda.device_count() == len(state["cuda"]):
            torch.cuda.set_rng_state_all([_bytes(device) for device in state["cuda"]])


def _text(state: Any) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _bytes(text: str) -> Any:
    import torch

    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
