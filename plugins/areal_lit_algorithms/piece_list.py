"""The pieces and their signatures, as markdown: read off the modules of ``pieces``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from areal_lit.contracts.component import Component
from areal_lit_algorithms import pieces


def signatures() -> Iterator[dict[str, str]]:
    """A row per function, class and method that others may use: where it is, how it is called, what it gives."""
    for found in iter_modules(pieces.__path__):
        module = import_module(f"{pieces.__name__}.{found.name}")
        for name, piece in _public(module):
            yield _row(found.name, name, piece)
            if inspect.isclass(piece):
                methods = inspect.getmembers(piece, inspect.isfunction)
                own = [
                    (method, call) for method, call in methods if method[0] != "_" and not hasattr(Component, method)
                ]
                yield from (_row(found.name, f"{name}.{method}", call) for method, call in own)


def _public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """In the order of the file."""
    for name, piece in vars(module).items():
        is_own = inspect.isroutine(piece) or inspect.isclass(piece)
        if is_own and piece.__module__ == module.__name__ and not name.startswith(("_", "check_")):
            yield name, piece


def _row(module: str, name: str, piece: Any) -> dict[str, str]:
    return {
        "module": f"`{module}`",
        "piece": f"`{name}{_call(piece)}`",
        "gives": (inspect.getdoc(piece) or "").partition("\n")[0].replace("``", "`"),
    }


def _call(piece: Any) -> str:
    """Its arguments and their defaults, without types."""
    signature = inspect.signature(piece)
    kept = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"]
    return str(signature.replace(parameters=kept, return_annotation=signature.empty))
