"""The golden cases: what occurs in them, that a batch of one is that case, and that numbers of others are refused."""

from __future__ import annotations

import json
from pathlib import Path

import golden_file
import numpy as np
import pytest
from oracle_batches import packed, to_packed, to_padded
from ragged_cases import MAX_LENGTH, MAX_STALENESS, NUM_CASES, Case, cases

DRAWN = cases()


def test_all_that_makes_batches_ragged_occurs() -> None:
    assert len(DRAWN) == NUM_CASES >= 200
    sizes = {int(n) for case in DRAWN for n in np.bincount(case.group)}
    assert sizes == {1, 2, 3, 4}
    assert {int(s) for case in DRAWN for s in (case.step - case.version)[case.mask]} == set(range(MAX_STALENESS + 1))
    assert {int(turn) for case in DRAWN for turn in case.turn[case.mask]} == {0, 1, 2}
    assert all(sum(found) > 20 for found in zip(*map(_features, DRAWN), strict=True))
    assert max(int(case.length.max()) for case in DRAWN) <= MAX_LENGTH
    assert all(case.is_compared.sum() >= 2 for case in DRAWN)


def _features(case: Case) -> tuple[bool, ...]:
    equal = any(np.ptp(case.reward[case.group == g]) == 0 for g in case.group)
    return (
        not case.is_trained.all(),
        not case.is_compared.all(),
        case.has_turn_rewards,
        bool(case.truncated.any()),
        equal,
        bool((np.diff(case.group) < 0).any()),
    )


def test_numbers_of_other_cases_are_refused(tmp_path: Path) -> None:
    made = {"package": "p", "version": "1", "seed": golden_file.SEED, "checksum": "0" * 64, "outputs": {}}
    (tmp_path / "other.json").write_text(json.dumps(made))
    with pytest.raises(ValueError, match=r"other\.json was made from other cases .*checksum 00000000"):
        golden_file.read("other", folder=tmp_path)


@pytest.mark.parametrize("index", [0, 6, 7])
def test_a_batch_is_its_case(index: int) -> None:
    case, batch = DRAWN[index], packed(index)
    assert batch["group"].tolist() == case.group.tolist()
    assert batch["truncated"].tolist() == case.truncated.tolist()
    assert np.array_equal(to_padded(case, batch["loss_mask"]), case.mask)
    for name in ("turn", "version"):
        assert np.array_equal(to_padded(case, batch[name])[case.mask], getattr(case, name)[case.mask])
    for ours, theirs in {"logprob": "behaviour", "turn_reward": "turn_reward", "value": "value"}.items():
        assert np.array_equal(to_padded(case, batch[ours])[case.mask], getattr(case, theirs)[case.mask])
    assert np.array_equal(to_padded(case, to_packed(case, case.current))[case.mask], case.current[case.mask])
