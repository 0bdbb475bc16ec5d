"""``areal-lit plugins new``: a package with one working plugin and the test that proves it."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from importlib import resources
from pathlib import Path
from string import Template

from areal_lit.contracts import KINDS
from areal_lit.files import writing
from areal_lit.plugins import Plugins
from areal_lit.recipes import RecipeError

KEYS = {
    "strategy": "policy.strategy",
    "optimizer": "policy.optimizer",
    "filter": "filters",
    "logger": "loggers",
    "callback": "callbacks",
}
"""Where a recipe names a component of a kind, if not under the kind itself."""


def write_package(name: str, kind: str, directory: Path) -> list[Path]:
    """Write the package into ``directory/NAME`` and return its files.

    Raises RecipeError for a name that cannot be imported, is taken, or whose folder exists.
    """
    target = directory / name.replace("_", "-")
    problem = _problem(name, kind, target)
    if problem:
        raise RecipeError(f"NAME {problem}")
    key = KEYS.get(kind, kind)
    values = {
        "name": name,
        "kind": kind,
        "distribution": name.replace("_", "-"),
        "class_name": "".join(part.capitalize() for part in name.split("_")),
        "group": KINDS[kind].group,
        "key": key,
        "recipe_value": f"[{name}]" if key in ("filters", "loggers", "callbacks") else name,
    }
    files = {
        "pyproject.toml": "pyproject",
        "README.md": "readme",
        f"src/{name}/__init__.py": kind,
        f"tests/test_{name}.py": f"test_{kind}",
    }
    templates = resources.files("areal_lit.cli") / "templates"
    for path, template in files.items():
        file = target / path
        text = (templates / f"{template}.txt").read_text(encoding="utf-8")
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(Template(text).substitute(values), encoding="utf-8")
    return [target / path for path in files]


def _problem(name: str, kind: str, target: Path) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", name) or "__" in name or keyword.iskeyword(name):
        return f"must be lower-case letters, digits and single underscores, like my_{kind}, got {name!r}"
    if name in Plugins.discover().names(kind):
        return f"{name!r} is the short name of an installed {kind} already; choose another"
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        return f"{name!r} is an importable package already and would be hidden; choose another, like my_{name}"
    if target.exists():
        return f"{name!r}: {target} exists already; choose another name or --directory"
    return ""
