"""The core knows no plugin: nothing in it imports one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and module of every import of a file, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module


def test_the_core_imports_no_plugin_package(repository: Path) -> None:
    files = sorted((repository / "areal_lit").rglob("*.py"))
    assert len(files) > 50
    found = [
        f"{path.relative_to(repository)}:{line} imports {module}"
        for path in files
        for line, module in imported(path)
        if module.startswith("areal_lit_")
    ]
    assert found == []
