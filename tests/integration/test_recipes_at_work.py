"""Recipes on sums: what an algorithm is known for really acts, as three steps of each show, and two learn."""

from __future__ import annotations

import csv
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from statistics import mean

import pytest

from areal_lit import hookimpl, recipes
from areal_lit.contracts import Callback

QUICK = (
    "max_steps=3", "policy.optimizer.init_args.warmup_steps=0", "inference.init_args.max_slots=64",
    "loggers=[csv]", "callbacks=[]", "checkpoint.at_end=false", "evaluation=null", "sync.probe_first=0",
    "sync.interval=3",  # ages are the same in each run: 0, 1 and 2
)  # fmt: skip
IN_ONE_PROCESS = ("launcher=inline", "transport=memory")

CLIPPED = (("train/clip_low", "train/clip_high"), 0.0)
REJECTED = (("train/rejected_low", "train/rejected_high"), 0.0)
CORRECTED = (("train/effective_sample_size",), 1.0)
ANCHORED = (("train/kl_reference",), 0.0)
AT_WORK = {
    "quickstart": [CLIPPED],
    "quickstart_cispo": [CLIPPED],
    "quickstart_dapo": [
        CLIPPED, (("train/reward_overlong_min",), 0.0), (("rollout/rejected/equal_rewards",), 0.0)
    ],
    "quickstart_distill": [(("train/teacher_divergence",), 0.0)],
    "quickstart_dr_grpo": [CLIPPED],
    "quickstart_gspo": [CLIPPED, CORRECTED],
    "quickstart_icepop": [REJECTED, CORRECTED],
    "quickstart_kpop": [REJECTED, CORRECTED],
    "quickstart_lite_ppo": [CLIPPED],
    "quickstart_m2po": [(("train/m2_dropped",), 0.0), CORRECTED],
    "quickstart_ppo": [CLIPPED, (("critic/grad_norm",), 0.0), (("train/value_mean",), 0.0)],
    "quickstart_process_reward": [CLIPPED, (("train/reward_turn_std",), 0.0)],
    "quickstart_reinforce_pp": [CLIPPED, ANCHORED, (("train/reward_kl_std",), 0.0)],
    "quickstart_reinforce_pp_baseline": [CLIPPED, ANCHORED],
    "quickstart_rloo": [CORRECTED],
    "quickstart_sapo": [(("train/gate_slope",), 1.0)],
}  # fmt: skip
"""Per recipe: metrics, one of which leaves the value that it has while the mechanism is idle."""


def rows(run: Path) -> list[dict[str, float]]:
    with (run / "metrics.csv").open() as file:
        return [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "where"), [*((name, IN_ONE_PROCESS) for name in AT_WORK), ("quickstart_ppo", ())])
def test_the_mechanism_of_a_recipe_acts_within_three_steps(tmp_path: Path, recipe: str, where: tuple[str, ...]) -> None:
    fit = recipes.load(recipe, overrides=[*QUICK, *where, f"runs_dir={tmp_path}"])
    steps = rows(fit.fit())
    assert len(steps) == 3
    for metrics, idle in AT_WORK[recipe]:
        found = [step[metric] for step in steps for metric in metrics if metric in step]
        assert any(abs(value - idle) > 1e-5 for value in found), f"{metrics} stay at {idle}: {found}"


def test_every_recipe_that_learns_sums_from_rewards_is_in_the_table() -> None:
    names = [name for name in recipes.shipped() if name.startswith("quickstart") and name != "quickstart_inline"]
    assert {name for name in names if recipes.load(name).reward is not None} == set(AT_WORK)


class UntilLearned(Callback):
    """Interrupts the run once the mean reward of 20 steps is past 0.8."""

    def __init__(self) -> None:
        self.rewards: list[float] = []

    @hookimpl
    def step_end(self, metrics: Mapping[str, float]) -> None:
        self.rewards.append(metrics["rollout/reward"])
        if mean(self.rewards[-20:]) > 0.8:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("recipe", ["quickstart", "quickstart_ppo"])
def test_a_recipe_lifts_the_reward_past_four_in_five(tmp_path: Path, recipe: str) -> None:
    fit = recipes.load(recipe, overrides=["loggers=[]", "checkpoint.at_end=false", f"runs_dir={tmp_path}"])
    fit.callbacks = [until_learned := UntilLearned()]
    with pytest.raises(KeyboardInterrupt):
        fit.fit()
    assert mean(until_learned.rewards[:5]) < 0.45
    assert len(until_learned.rewards) > 20
