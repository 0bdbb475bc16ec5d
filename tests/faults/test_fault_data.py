"""Data that cannot be trained on: too long for the model, empty, or rejected altogether."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_parts import Rows, Trained, small

from areal_lit import Evaluation
from areal_lit.contracts import Filter
from areal_lit.types import Group
from areal_lit_single.strategy import Single

LONG = "1+" * 300
TOO_LONG = r"row \d+ of source 'rows': 600 prompt tokens and max_new_tokens 3 are more than 512, policy.model's max_po"


@pytest.mark.slow
def test_prompts_that_are_too_long_are_dropped_counted_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = ["good", "good", *[LONG] * 9, *["good"] * 21]
    run = small(
        tmp_path, data=Rows(rows, evaluation=[LONG, "good"]), loggers=[trained := Trained()], max_steps=None,
        rollout={"num_epochs": 1}, evaluation=Evaluation(at_start=True),
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        run.fit()
    assert trained.prompts == ["good"] * 23
    assert trained.total("rollout/rejected/long_prompt") == 9
    assert trained.total("rollout/failed_episodes") == trained.total("rollout/retries") == 0
    assert trained.steps[0]["eval/held_out/unscored"] == 1
    assert caplog.text.count("a prompt was dropped: row") == 1
    assert "leave long prompts out (max_prompt_tokens of the data) or have them dropped" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "rollout", "error", "says"),
    [
        ([LONG] * 8, {"long_prompts": "raise"}, ValueError, TOO_LONG),
        ([LONG] * 8, {}, RuntimeError, rf"last 64 groups were all rejected \(long_prompt 64; last: {TOO_LONG}"),
        ([LONG] * 8, {"num_epochs": 1}, RuntimeError, rf"the data ended .* all 8 .*\(long_prompt 8; l.*{TOO_LONG}"),
        ([], {}, ValueError, "data source 'rows' has no examples; remove it or check its filter"),
    ],
)  # fmt: skip
def test_data_that_leaves_nothing_to_train_ends_the_run(
    tmp_path: Path, rows: list[str], rollout: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        small(tmp_path, data=Rows(rows), rollout=rollout).fit()


class Forgetful(Rows):
    """Its position is in a set."""

    def state_dict(self) -> Mapping[str, Any]:
        return {"seen": set()}


@pytest.mark.slow
def test_a_position_that_cannot_be_saved_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    run = small(tmp_path, data=Forgetful(["good"] * 8), loggers=[trained := Trained()])
    with pytest.raises(TypeError, match=r"^data: state_dict\(\) of .*Forgetful .* cannot hold: .*type set"):
        run.fit()
    assert not trained.groups


@pytest.mark.slow
def test_a_sequence_that_fits_the_model_and_no_microbatch_is_too_long_as_well(tmp_path: Path) -> None:
    run = small(tmp_path, data=Rows(["12345678"] * 8), rollout={"long_prompts": "raise"})
    run.policy = replace(run.policy, strategy=Single(max_tokens_per_microbatch=10))
    with pytest.raises(ValueError, match=r"8 prompt tokens .* more than 10, policy.strategy.max_tokens_per_microbatch"):
        run.fit()


@pytest.mark.slow
def test_an_empty_evaluation_set_is_refused_before_training(tmp_path: Path) -> None:
    run = small(tmp_path, data=Rows(["good"], evaluation=[]), evaluation=Evaluation(every_steps=1))
    with pytest.raises(ValueError, match=r"evaluation set 'held_out' has no examples; remove it or check its filter"):
        run.fit()


class Picky(Filter):
    def accept(self, group: Group) -> bool:
        return False


class Particular(Filter):
    def accept(self, group: Group) -> bool:
        return group.prompt.row % 2 == 0


class Crumbling(Filter):
    def accept(self, group: Group) -> bool:
        raise LookupError("no such row")


def both(number: int) -> str:
    """So many of each filter, in either order."""
    return f"(picky {number}, particular {number}|particular {number}, picky {number})"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("filters", "rollout", "says"),
    [
        (
            [Particular(), Picky()],
            {"max_rejected_groups": 16, "max_concurrent": 1},
            rf"16 groups were all rejected \({both(8)}",
        ),
        ([Particular(), Picky()], {"num_epochs": 1}, rf"the data ended before .* all 8 .* \({both(4)}"),
        ([Crumbling()], {}, r"filter .*Crumbling \(no distribution\) raised LookupError: no such row, on the group of"),
    ],
)  # fmt: skip
def test_filters_that_leave_nothing_are_told_with_what_each_dropped(
    tmp_path: Path, filters: list[Filter], rollout: dict[str, object], says: str
) -> None:
    with pytest.raises(RuntimeError, match=says):
        small(tmp_path, data=Rows(["good"] * 8), filters=filters, rollout=rollout).fit()
