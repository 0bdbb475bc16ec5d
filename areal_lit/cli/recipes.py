"""``areal-lit recipes``: the recipes that ship with areal-lit."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from areal_lit.files import writing
from areal_lit.names import closest
from areal_lit.recipes import RecipeError, shipped


def run(arguments: Sequence[str]) -> int:
    """List the recipes, print one, or copy one to be edited."""
    parser = argparse.ArgumentParser(prog="areal-lit recipes", description="List, show and copy shipped recipes.")
    actions = parser.add_subparsers(dest="action")
    actions.add_parser("show", help="print a recipe").add_argument("name")
    copy = actions.add_parser("copy", help="copy a recipe to the current directory, to be edited")
    copy.add_argument("name")
    copy.add_argument("--directory", default=".", help="where to (default: here)")
    parsed = parser.parse_args(list(arguments))
    if parsed.action == "show":
        sys.stdout.write(_text(parsed.name))
    elif parsed.action == "copy":
        print(_copy(parsed.name, Path(parsed.directory)))
    else:
        width = max(map(len, shipped()), default=0)
        for name in shipped():
            print(f"{name:<{width}}  {_headline(_text(name))}")
    return 0


def _text(name: str) -> str:
    recipes = shipped()
    name = name.removesuffix(".yaml")
    if name not in recipes:
        raise RecipeError(f"no recipe is called {name!r}; {closest(name, recipes)}")
    return str(recipes[name].read_text(encoding="utf-8"))


def _headline(text: str) -> str:
    """The first line of the header comment."""
    comments = (line for line in text.splitlines() if line.startswith("#"))
    return next(comments, "").lstrip("# ").strip()


def _copy(name: str, directory: Path) -> Path:
    target = directory / f"{name.removesuffix('.yaml')}.yaml"
    text = _text(name)
    if target.exists():
        raise RecipeError(f"{target} exists already; remove it or give another --directory")
    with writing(target):
        target.write_text(text, encoding="utf-8")
    return target
