"""docs/algorithms.md is what the classes say, and a third party's algorithm is listed without being known."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_lit.plugins import Plugin, Plugins
from areal_lit.recipes.schema import parameters_of
from areal_lit_algorithms.catalogue import markdown
from areal_lit_algorithms.piece_list import signatures
from areal_lit_algorithms.policy_gradient import PolicyGradient

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"

OUTSIDE = '''"""Plain: what was better than its group gets likelier (arXiv 9912.34567)."""

from areal_lit_algorithms.grpo import GRPO


class Plain(GRPO):
    """Nothing new.

    Args:
        strength: of nothing.
        height: of it, to be given.
    """

    def __init__(self, *, height: float, strength: float = 3.0, **grpo) -> None:
        super().__init__(**grpo)
'''


def test_the_page_is_current() -> None:
    plugins = [plugin for plugin in Plugins.discover() if plugin.distribution == "areal-lit"]
    assert PAGE.read_text() == markdown(plugins), "run `python -m areal_lit_algorithms.catalogue > docs/algorithms.md`"


def test_an_algorithm_from_elsewhere_is_told_from_its_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain_outside.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    plugin = Plugin(kind="algorithm", name="plain", target="plain_outside:Plain", distribution="outside", version="1.0")
    page = markdown([plugin])
    paper = "[9912.34567](https://arxiv.org/abs/9912.34567)"
    assert f"| [plain](#plain) | Nothing new. | policy | proximal | rollouts | {paper} |" in page
    assert "| height (to be given), strength 3, clip_low 0.2, clip_high 0.2 |" in page
    assert "## plain\n\nPlain: what was better than its group" in page


def test_what_policy_gradients_share_and_every_piece_are_told() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in parameters_of(PolicyGradient) if f"\n| `{name}` | " not in page] == []
    for piece in ("`clipped_ratio(log_ratio_T, advantage_T, mask_T, *, clip_low, clip_high, clip_dual=None)`",
                  "`Normaliser.samples(x_S, batch)`", "`ratio(log_ratio_T)`"):  # fmt: skip
        assert f"| {piece} | " in page
    rows = {row["piece"]: row["gives"] for row in signatures()}
    assert [piece for piece, gives in rows.items() if not gives] == []
