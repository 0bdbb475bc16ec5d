"""``areal-lit schema``: the JSON Schema of recipes, for editors."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from areal_lit.files import writing


def run(arguments: Sequence[str]) -> int:
    """Print the schema, or write it to a file; 0."""
    parser = argparse.ArgumentParser(
        prog="areal-lit schema",
        description="The JSON Schema of recipes with what is installed here, plugins of others included. An editor "
        "with a YAML language server checks a recipe that begins with: # yaml-language-server: $schema=FILE",
    )
    parser.add_argument("--output", type=Path, help="file to write to (default: standard output)")
    parsed = parser.parse_args(list(arguments))
    from areal_lit.recipes.json_schema import json_schema
    from areal_lit.trainer import Trainer

    text = json.dumps(json_schema(Trainer), indent=2) + "\n"
    if parsed.output is None:
        sys.stdout.write(text)
    else:
        with writing(parsed.output):
            parsed.output.write_text(text, encoding="utf-8")
    return 0
