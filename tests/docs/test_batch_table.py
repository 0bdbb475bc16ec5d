"""docs/write_a_plugin.md lists the columns of a batch and what outputs hold: all there are, and no other."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from areal_lit.token_batch import CORE_COLUMNS, TokenBatch, TokenOutputs

PAGE = Path(__file__).parents[2].joinpath("docs", "write_a_plugin.md").read_text(encoding="utf-8")


def test_every_column_is_told_with_its_dimension() -> None:
    (table,) = [part for part in PAGE.split("\n\n") if part.startswith("| columns | of |")]
    told: dict[str, str] = {}
    for row in table.splitlines()[2:]:
        columns, of = row.split("|")[1:3]
        names, dims = re.findall(r"`(\w+)`", columns), of.strip().split(", ")
        told |= dict(zip(names, dims * len(names) if len(dims) == 1 else dims, strict=True))
    assert told == CORE_COLUMNS


def test_every_output_is_told_and_every_method_exists() -> None:
    assert [field.name for field in fields(TokenOutputs) if f"`{field.name}`" not in PAGE] == []
    methods = re.findall(r"`batch\.(\w+)", PAGE)
    assert len(methods) >= 4
    assert [name for name in methods if not hasattr(TokenBatch, name)] == []
