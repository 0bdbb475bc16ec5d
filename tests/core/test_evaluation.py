"""What an evaluation's rewards say: pass@k, means and intervals, checked against numbers worked out by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from areal_lit.contracts import DataModule, Source
from areal_lit.evaluation import (
    Evaluation,
    evaluation_metrics,
    evaluation_prompts,
    evaluation_sources,
    metric_names,
    pass_at_k,
)
from areal_lit.types import Example, Group, Prompt, Trajectory


def group(*rewards: float | None) -> Group:
    """A prompt's samples of 1, 2, 3... tokens; None is unscored."""
    prompt = Prompt(prompt_id=0, source="s", row=0, epoch=0, example=Example(prompt="p"))
    members = tuple(
        Trajectory(
            token_ids=np.arange(index + 2),
            loss_mask=np.arange(index + 2) > 0,
            logprobs=np.zeros(index + 2, dtype=np.float32),
            versions=np.full(index + 2, 3),
            prompt=prompt,
            reward=reward,
            unscored="" if reward is not None else "timeout",
        )
        for index, reward in enumerate(rewards)
    )
    return Group(prompt=prompt, trajectories=members)


def values(groups: list[Group], *, samples: int, success_reward: float = 1.0) -> dict[str, float]:
    metrics = evaluation_metrics("s", groups, samples=samples, success_reward=success_reward)
    assert {metric.name for metric in metrics} <= {f"eval/s/{name}" for name in metric_names(samples)}
    return {metric.name.removeprefix("eval/s/"): metric.value for metric in metrics}


@pytest.mark.parametrize("num_samples", [1, 3, 5])
def test_pass_at_k_is_the_share_of_subsets_that_hold_a_success(num_samples: int) -> None:
    for num_passed in range(num_samples + 1):
        outcomes = [True] * num_passed + [False] * (num_samples - num_passed)
        for k in range(1, num_samples + 1):
            subsets = list(itertools.combinations(outcomes, k))
            assert pass_at_k(num_samples, num_passed, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_needs_k_samples() -> None:
    with pytest.raises(ValueError, match=r"pass@4 needs at least 4 samples, got 3"):
        pass_at_k(3, 1, 4)


def test_reward_and_its_interval_are_over_prompts() -> None:
    got = values([group(1.0, 0.0), group(1.0, 1.0), group(0.0, 0.0)], samples=2)
    assert got["reward"] == pytest.approx(0.5)
    # prompt means 0.5, 1, 0: standard deviation 0.5 (n - 1), of the mean 0.5 / sqrt(3)
    assert got["reward_ci95"] == pytest.approx(1.96 * 0.5 / math.sqrt(3))
    assert got["pass@1"] == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert got["pass@2"] == pytest.approx((1.0 + 1.0 + 0.0) / 3)
    assert got["length"] == pytest.approx(1.5)


def test_unscored_samples_are_counted_and_are_no_zeros() -> None:
    got = values([group(1.0, None), group(None, None), group(1.0, 0.0)], samples=2)
    assert got["reward"] == pytest.approx((1.0 + 0.5) / 2)
    assert got["unscored"] == 3
    assert got["pass@1"] == pytest.approx((1.0 + 0.5) / 2)
    assert got["pass@2"] == 1.0  # of the only prompt with two scored samples


def test_nothing_scored_is_no_number() -> None:
    got = values([group(None)], samples=1)
    assert math.isnan(got["reward"])
    assert math.isnan(got["pass@1"])
    assert "reward_ci95" not in got


def test_a_success_is_what_reaches_the_success_reward() -> None:
    assert values([group(0.5), group(0.4)], samples=1, success_reward=0.5)["pass@1"] == 0.5


def test_when_it_is_due() -> None:
    never = Evaluation()
    assert not any(never.is_due(step, is_last=step == 4) for step in range(5))
    both_ends = Evaluation(at_start=True, at_end=True)
    assert [both_ends.is_due(step, is_last=step == 4) for step in range(5)] == [True, False, False, False, True]
    every = Evaluation(every_steps=2)
    assert [every.is_due(step, is_last=step == 5) for step in range(6)] == [False, False, True, False, True, False]


class Sets(DataModule):
    def __init__(self, *names: str) -> None:
        self.names = names

    def setup(self, codec: object) -> None: ...

    def train(self) -> dict[str, Source]:
        return {}

    def evaluation(self) -> dict[str, Source]:
        return {name: Source(examples=[Example(prompt=name), Example(prompt="2")]) for name in self.names}


def test_sets_have_names_of_their_own() -> None:
    found = evaluation_sources(Sets("own"), {"one": Sets("x"), "two": Sets("y", "z")})
    assert list(found) == ["own", "one", "two/y", "two/z"]
    assert found["one"].examples[0].prompt == "x"
    with pytest.raises(ValueError, match="two evaluation sets are called 'own'"):
        evaluation_sources(Sets("own"), {"own": Sets("x")})


def test_prompts_are_the_first_of_a_set_in_order() -> None:
    source = Source(examples=[Example(prompt=str(i)) for i in range(3)])
    assert [p.row for p in evaluation_prompts("s", source, None)] == [0, 1, 2]
    assert [p.example.prompt for p in evaluation_prompts("s", source, 2)] == ["0", "1"]
    assert len(evaluation_prompts("s", source, 9)) == 3


@pytest.mark.parametrize("wrong", [{"every_steps": -1}, {"samples": 0}, {"max_prompts": 0}])
def test_wrong_settings_are_refused(wrong: dict[str, int]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"evaluation\.{name} must be >= "):
        Evaluation(**wrong)  # type: ignore[arg-type]
