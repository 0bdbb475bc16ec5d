"""``areal-lit plugins``: what is installed, what is broken, which hooks there are, and the start of a new one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from areal_lit.cli.listing import first_line
from areal_lit.contracts import KINDS
from areal_lit.plugins import Plugins

WIDE = 1000
"""Columns where there is no terminal to fit: a line per plugin."""


def run(arguments: Sequence[str]) -> int:
    """0; 1 when ``--broken`` found any."""
    parser = argparse.ArgumentParser(prog="areal-lit plugins", description="List installed plugins; imports none.")
    parser.add_argument("--json", action="store_true", help="kind, name, distribution, version and help as JSON")
    parser.add_argument("--broken", action="store_true", help="import each plugin and show why it cannot be used")
    parser.add_argument("--hooks", action="store_true", help="every event hook, as markdown")
    new = parser.add_subparsers(dest="action").add_parser("new", help="write a package with a plugin of your own")
    new.add_argument("name", help="short name of the plugin, and of its package")
    new.add_argument("--kind", required=True, choices=list(KINDS))
    new.add_argument("--directory", default=".", type=Path, help="where the package's folder goes (default: here)")
    parsed = parser.parse_args(list(arguments))
    if parsed.action == "new":
        from areal_lit.cli.new_plugin import write_package

        files = write_package(parsed.name, parsed.kind, parsed.directory)
        print("\n".join(map(str, files)))
        print(f"next: cd {files[0].parent} && pip install -e '.[test]' && python -m pytest")
        return 0
    if parsed.hooks:
        from areal_lit.cli.hooks import markdown

        print(markdown(), end="")
        return 0
    if parsed.broken:
        return _print_broken()
    rows = [
        {"kind": p.kind, "name": p.name, "distribution": p.distribution, "version": p.version, "help": first_line(p)}
        for p in Plugins.discover()
    ]
    if parsed.json:
        print(json.dumps(rows, indent=2))
    else:
        _print_table(rows)
    return 0


def _print_table(rows: Sequence[dict[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("kind", "name", "distribution", "help"):
        table.add_column(column, no_wrap=column in ("kind", "name"), ratio=int(column == "help") or None)
    for row in rows:
        table.add_row(row["kind"], row["name"], f"{row['distribution']} {row['version']}", row["help"].replace("`", ""))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDE
    console.print(table)


def _print_broken() -> int:
    num_broken = 0
    for plugin, reason in Plugins.discover().broken():
        num_broken += 1
        print(f"{plugin.kind} {plugin.name} of {plugin.distribution} {plugin.version}:\n{reason}\n")
    print(f"{num_broken} broken" if num_broken else "no plugin is broken")
    return 1 if num_broken else 0
