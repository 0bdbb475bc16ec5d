"""One line about a plugin, read from its source: nothing is imported, so a broken or heavy plugin costs nothing."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from areal_lit.plugins import Plugin


def first_line(plugin: Plugin) -> str:
    """The first line of the class's docstring; empty when it has none or its source cannot be read."""
    module, _, name = plugin.target.partition(":")
    return _docstring_line(module, name, depth=3)


def _docstring_line(module: str, name: str, *, depth: int) -> str:
    source = _source(module)
    if source is None or depth == 0:
        return ""
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    parent = module if source.name == "__init__.py" else module.rpartition(".")[0]
                    parent = ".".join(parent.split(".")[: len(parent.split(".")) - max(node.level - 1, 0)])
                    return _docstring_line(
                        f"{parent}.{node.module}" if node.level else node.module, alias.name, depth=depth - 1
                    )
    return ""


def _source(module: str) -> Path | None:
    """The file of a module. Only its top-level package is looked up, which runs no code of it."""
    top, *parts = module.split(".")
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if found is None:
        return None
    if not parts:
        return Path(found.origin) if found.origin and found.origin.endswith(".py") else None
    for location in found.submodule_search_locations or ():
        base = Path(location, *parts)
        for candidate in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None
