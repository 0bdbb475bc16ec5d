"""The documentation builds into a site without a warning, and every page is in its navigation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from areal_lit.contracts import KINDS

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_site_is_built_strictly(tmp_path: Path) -> None:
    """Links, anchors and navigation are checked by mkdocs, which a warning ends."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    start = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'href="recipes/"' in start
    assert "train_sums.py" in start
    contracts = (tmp_path / "contracts" / "index.html").read_text(encoding="utf-8")
    missing = [kind.base.__name__ for kind in KINDS.values() if f'id="{_anchor(kind.base)}"' not in contracts]
    assert missing == []
    fences = {page for page in tmp_path.rglob("*.html") if "```" in _without_code(page.read_text(encoding="utf-8"))}
    assert fences == set()


def _anchor(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _without_code(html: str) -> str:
    return re.sub(r"<pre.*?</pre>|<code.*?</code>", "", html, flags=re.DOTALL)
