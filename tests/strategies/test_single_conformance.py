"""Single passes the conformance suite in every mode, and the suite fails strategies with a planted bug."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_lit.testing.strategy import STRATEGY_CHECKS
from areal_lit.testing.strategy_case import Case
from areal_lit_single.strategy import Single


@pytest.mark.parametrize("check", STRATEGY_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "options", [{}, {"attention": "padded"}, {"gradient_checkpointing": True}], ids=["packed", "padded", "recompute"]
)
def test_conformance(check, options: dict, tmp_path: Path) -> None:
    check(Case(lambda: Single(**options), tmp_path))
