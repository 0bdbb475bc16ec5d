"""Which reward scores what, and how long a sequence may be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from areal_lit import recipes
from areal_lit.contracts import Source
from areal_lit.roles import Role
from areal_lit.run.online import limits_of, require_rewards, rewards_by_key
from areal_lit.testing.tiny import tiny_spec
from areal_lit.types import Example
from areal_lit.validation import sequence_limit
from areal_lit_rewards.exact_match import ExactMatch
from areal_lit_single.strategy import Single


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
        require_rewards(None, kinds)
    require_rewards(ExactMatch(), kinds)
    assert list(rewards_by_key(ExactMatch(), kinds)) == ["default", "source a"]


@pytest.mark.parametrize(
    ("budget", "limit", "rule"),
    [
        (30, 30, "policy.strategy.max_tokens_per_microbatch"),
        (10**6, 40, "reference.model's max_position_embeddings"),
    ],
)
def test_a_sequence_fits_every_model_and_a_microbatch_in_validation_as_in_the_run(
    tmp_path: Path, budget: int, limit: int, rule: str
) -> None:
    spec = tiny_spec(tmp_path)
    assert spec.config is not None
    trainer = recipes.load("quickstart_inline")
    trainer.policy = Role(model=spec, strategy=Single(max_tokens_per_microbatch=budget))
    shorter = replace(spec, config={**spec.config, "max_position_embeddings": 40})
    trainer.reference = Role(model=shorter, strategy=Single())
    limits = limits_of(trainer)
    assert (limits.max_tokens, limits.max_tokens_rule) == sequence_limit(trainer) == (limit, rule)
    assert limits.vocab_size == 64
