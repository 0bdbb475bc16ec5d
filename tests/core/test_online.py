"""Which reward scores what."""

from __future__ import annotations

import pytest

from areal_lit.contracts import Source
from areal_lit.online import rewards_by_key
from areal_lit.types import Example
from areal_lit_rewards.exact_match import ExactMatch


def source(reward: ExactMatch | None = None) -> Source:
    return Source(examples=[Example(prompt="1+1=")], reward=reward)


def test_equal_names_keep_their_own_rewards() -> None:
    default, train, held_out, tricky = ExactMatch(), ExactMatch(), ExactMatch(), ExactMatch()
    rewards = rewards_by_key(
        default,
        {
            "source": {"sums": source(train), "default": source(tricky), "plain": source()},
            "evaluation set": {"sums": source(held_out)},
        },
    )
    assert [id(reward) for reward in rewards.values()] == [id(r) for r in (default, train, tricky, held_out)]
    assert list(rewards) == ["default", "source sums", "source default", "evaluation set sums"]


def test_a_reward_of_several_sources_is_one() -> None:
    shared = ExactMatch()
    kinds = {"source": {"a": source(shared), "b": source(shared)}, "evaluation set": {"a": source(shared)}}
    assert rewards_by_key(None, kinds) == {"source a": shared}


def test_sources_that_nothing_scores_are_named() -> None:
    kinds = {"source": {"a": source(ExactMatch()), "b": source()}, "evaluation set": {"c": source()}}
    with pytest.raises(ValueError, match="nothing scores source b, evaluation set c"):
        rewards_by_key(None, kinds)
    assert list(rewards_by_key(ExactMatch(), kinds)) == ["default", "source a"]
