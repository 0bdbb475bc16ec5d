"""Which prompts the parity probe takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_lit.contracts import Source
from areal_lit.run.probes import probe_prompts
from areal_lit.testing.tiny import tiny_spec
from areal_lit.text import TextCodec
from areal_lit.types import Example


def test_probes_take_the_first_rows_that_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    codec = TextCodec(tiny_spec(tmp_path))
    rows = ["1+" * 40, "", "1+1=", "\ud800", "2+2=", "3+3="]
    lengthy = Source(examples=[Example(prompt=row) for row in rows])
    found = probe_prompts(codec, lengthy, num=2, longest=30)
    assert [codec.decode(token_ids) for token_ids in found] == ["1+1=", "2+2="]
    assert probe_prompts(codec, lengthy, num=2, longest=3) == []
    assert "no parity probe: none of the first 64 prompts has between 1 and 3 tokens" in caplog.text
