"""areal-lit: asynchronous reinforcement learning of language models as a small loop and plugins.

The names below load on first use, so that importing the package needs neither torch nor a plugin.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Checkpoint": "checkpointing",
    "Evaluation": "evaluation",
    "Refresh": "refresh",
    "Role": "roles",
    "Rollout": "rollout",
    "Sampling": "types",
    "Trainer": "trainer",
    "WeightSync": "weight_sync",
    "hookimpl": "hookspecs",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'areal_lit' has no attribute {name!r}")
    return getattr(import_module(f"areal_lit.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
