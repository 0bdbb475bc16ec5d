"""What is imported where: the core knows no plugin, and what is heavy comes late."""

from __future__ import annotations

import ast
import subprocess
import sys
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


def test_nothing_heavy_is_imported_before_processes_warm_up() -> None:
    """What `areal-lit fit` imports until its launcher is told what to import, and a script until `fit`."""
    modules = "areal_lit.cli.fit, areal_lit.recipes.warm_up, areal_lit.run.running, areal_lit_launchers.local"
    program = f"import sys, {modules}; print(*(sys.modules.keys() & {{'numpy', 'torch', 'transformers'}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


READ = """
import collections, sys
times = collections.Counter()
sys.addaudithook(lambda event, args: times.update([str(args[0])] if event == "open" else []))
FIRST
import transformers.models
print(max(number for path, number in times.items() if "/models/" in path and path.endswith(".py")))
print(sorted(transformers.models._class_to_module.items()))
"""


def test_transformers_reads_its_models_once_and_knows_the_same_of_them() -> None:
    (times, ours), (_, plain) = (
        subprocess.run(
            [sys.executable, "-c", READ.replace("FIRST", first)], capture_output=True, text=True, check=True
        ).stdout.split("\n", 1)
        for first in ("import areal_lit.models.hugging_face", "")
    )
    assert times == "1"
    assert ours == plain
    assert len(plain) > 10_000
