"""Fakes and conformance suites for plugin authors; each name loads with its own module."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "FakeBackend": "fake_inference",
    "check_algorithm": "algorithm",
    "check_callback": "callback",
    "check_data": "data",
    "check_filter": "filter",
    "check_inference": "inference",
    "check_launcher": "launcher",
    "check_logger": "logger",
    "check_optimizer": "optimizer",
    "check_reward": "reward",
    "check_strategy": "strategy",
    "check_transport": "transport",
    "check_workflow": "workflow",
    "started_ranks": "algorithm_ranks",
    "tiny_spec": "tiny",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'areal_lit.testing' has no attribute {name!r}")
    return getattr(import_module(f"areal_lit.testing.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
