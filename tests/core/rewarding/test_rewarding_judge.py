"""What counts as a reward, and which settings do."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_lit.rewarding import Rewarding
from areal_lit.rewarding.calls import judge
from areal_lit.types import Scored


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_workers": 0},
        {"timeout_s": 0.0},
        {"max_attempts": 0},
        {"batch_size": 0},
        {"max_kills_in_row": 0},
        {"on_failure": "zero"},
    ],
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"rewarding.{next(iter(wrong))} must"):
        Rewarding(**wrong)


@pytest.mark.parametrize("value", [1e300, -1e300, 1e39, 10**300])
def test_judge_refuses_what_float32_cannot_train_on(value: float) -> None:
    for score in (value, Scored(value=value)):
        outcome = judge(score)
        assert (outcome.value, outcome.kind) == (None, "invalid")
        assert "rewards must be within" in outcome.reason
    assert judge(-1e18).value == -1e18


@given(st.one_of(st.none(), st.text(), st.floats(), st.booleans(), st.integers(), st.lists(st.floats()), st.binary()))
def test_judge_gives_a_finite_number_or_a_reason_that_travels(score: object) -> None:
    outcome = pickle.loads(pickle.dumps(judge(score)))
    if isinstance(score, int | float) and abs(score) <= 1e18:
        assert outcome.value == float(score)
    if outcome.value is None:
        assert outcome.kind == "invalid"
        assert outcome.reason
