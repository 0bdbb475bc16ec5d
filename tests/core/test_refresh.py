"""Refresh: when it is due, and what cannot follow the policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from areal_lit import Refresh, Role, Rollout, Trainer
from areal_lit.contracts import Strategy
from areal_lit.testing.tiny import TINY_CONFIG
from areal_lit.types import ModelSpec
from areal_lit.validation import broken_rules
from areal_lit_algorithms.dpo import DPO
from areal_lit_data.arithmetic import Arithmetic
from areal_lit_launchers.inline import Inline
from areal_lit_launchers.local import Local
from areal_lit_optimizers.adamw import AdamW
from areal_lit_single.strategy import Single

MODEL = ModelSpec(path="package:areal_lit_recipes/quickstart_model")


class Isolated(Single):
    """Copies nothing."""

    copy_from = Strategy.copy_from


def role(**changes: Any) -> Role:
    return Role(**{"model": MODEL, "strategy": Single(), "num_threads": 1, **changes})


def trainer(reference: Role, policy: Role | None = None) -> Trainer:
    return Trainer(
        algorithm=DPO(), policy=policy or role(optimizer=AdamW(lr=1e-3)), reference=reference,
        data=Arithmetic(pairs=True), launcher=Local(), rollout=Rollout(groups_per_step=4, samples_per_group=1),
        max_steps=2,
    )  # fmt: skip


def test_it_is_due_every_so_many_steps() -> None:
    assert [step for step in range(1, 10) if Refresh(every_steps=3).is_due(step)] == [3, 6, 9]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every_steps": 0}, "every_steps must be >= 1, got 0"),
        ({"every_steps": 1, "decay": 1.0}, r"decay must be in \[0, 1\), got 1.0"),
        ({"every_steps": 1, "decay": -0.1}, r"decay must be in \[0, 1\), got -0.1"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Refresh(**arguments)


def test_who_follows_the_policy_lives_on_its_ranks_and_is_frozen() -> None:
    refresh = Refresh(every_steps=1)
    assert broken_rules(trainer(role(refresh=refresh, colocate_with="policy"))) == []
    (apart,) = broken_rules(trainer(role(refresh=refresh)))
    assert "reference lives on others; set reference.colocate_with: policy" in apart
    (alone,) = broken_rules(trainer(role(strategy=Isolated(), refresh=refresh, colocate_with="policy")))
    assert "strategy Isolated cannot copy weights between roles" in alone
    trained = role(optimizer=AdamW(lr=1e-3), refresh=refresh)
    (policy,) = broken_rules(trainer(role(), policy=trained))
    assert "policy.refresh is given, but DPO trains that role" in policy


def test_another_architecture_is_refused_before_the_first_step(tmp_path: Path) -> None:
    narrow = replace(MODEL, config=TINY_CONFIG)
    reference = role(model=narrow, refresh=Refresh(every_steps=100), colocate_with="policy")
    fit = trainer(reference)
    fit.runs_dir, fit.launcher = str(tmp_path), Inline()
    with pytest.raises(ValueError, match=r"reference.refresh .* the policy has no model.embed_tokens.weight of shape"):
        fit.fit()
    assert fit.step == 0
