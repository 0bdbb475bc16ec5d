from __future__ import annotations

import pytest

from areal_lit.testing.reward import check_reward, completion
from areal_lit_rewards.format import Format


def test_thoughts_then_an_answer() -> None:
    check_reward(
        Format(),
        [
            (completion("<think>1 + 1\nis 2</think>\n2"), 1.0),
            (completion("2"), 0.0),
            (completion("<think>hm</think>"), 0.0),
            (completion("<think>a</think><think>b</think> 2"), 0.0),
            (completion("<think></think> 2"), 0.0),
        ],
    )


def test_a_pattern_must_match_the_whole_completion() -> None:
    check_reward(Format(pattern=r"\d+"), [(completion(" 42 "), 1.0), (completion("42!"), 0.0)])


def test_a_broken_pattern_is_refused() -> None:
    with pytest.raises(ValueError, match="not a regular expression"):
        Format(pattern="(")
