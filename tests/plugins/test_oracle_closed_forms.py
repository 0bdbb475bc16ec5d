"""Every algorithm against its paper in plain Python, in value and gradient, on the golden cases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from algorithm_family import FAMILY
from algorithm_mutants import MUTANTS
from algorithm_papers import PUBLISHED, Total, policy_step
from algorithm_reference import Sample, Token
from oracle_batches import Step, assert_number, take_step
from ragged_cases import Case, Floats, cases

from areal_lit_algorithms.policy_gradient import PolicyGradient


def samples_of(case: Case) -> list[Sample]:
    samples = []
    for row in np.flatnonzero(case.is_trained):
        sample = Sample(
            group=int(case.group[row]), reward=float(case.reward[row]), truncated=bool(case.truncated[row]),
            final_value=float(case.final_value[row]),
        )  # fmt: skip
        for t in np.flatnonzero(case.mask[row]):
            turn_reward = float(case.turn_reward[row, t]) or None
            token = Token(turn=int(case.turn[row, t]), version=int(case.version[row, t]), turn_reward=turn_reward)
            token.logprob = float(case.current[row, t])
            for name in ("behaviour", "proximal", "reference", "value"):
                setattr(token, name, float(getattr(case, name)[row, t]))
            sample.tokens.append(token)
        samples.append(sample)
    return samples


def assert_total(step: Step, case: Case, expected: Total, *, has_advantage: bool = True) -> None:
    assert_number(step.loss, expected.loss, expected.size, f"loss of case {case.index}")
    assert_each(step.gradient, case, expected.slopes, "slope")
    if has_advantage:
        assert_each(step.advantage, case, expected.advantages, "advantage")


def assert_each(ours: Floats, case: Case, expected: Sequence[float], what: str) -> None:
    size = max(map(abs, expected))
    for place, (mine, other) in enumerate(zip(ours[case.mask].tolist(), expected, strict=True)):
        assert_number(mine, other, size, f"{what} {place} of case {case.index}")
    assert not ours[~case.mask].any()


@pytest.mark.parametrize("name", PUBLISHED)
def test_defaults_are_the_published_algorithm(name: str) -> None:
    assert_published(name, FAMILY[name]())


def assert_published(name: str, algorithm: PolicyGradient) -> None:
    for case in cases():
        assert_total(take_step(algorithm, case), case, policy_step(name, samples_of(case), step=case.step))


@pytest.mark.parametrize("wrong", MUTANTS)
def test_planted_mutants_are_not_the_published_algorithm(wrong: str) -> None:
    name, mutant = MUTANTS[wrong]
    with pytest.raises(AssertionError, match="of case"):
        assert_published(name, mutant)
