"""PPO with two mini-batches and a critic, on the policy's rank and on its own, through ``Trainer.fit``."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from areal_lit import hookimpl, recipes
from areal_lit.contracts import Callback
from areal_lit.trainer import Trainer

MODEL = "package:areal_lit_recipes/quickstart_model"
ADAM = "{class_path: adamw, init_args: {lr: 1.0e-3}}"


def trainer(directory: Path, *overrides: str) -> Trainer:
    """The quickstart with PPO by its dotted path, a critic from the same model, and two optimizer steps per batch."""
    return recipes.load(
        "quickstart_inline",
        overrides=[
            f"runs_dir={directory}", "deterministic=true", "loggers=[csv]", "callbacks=[]", "num_minibatches=2",
            "algorithm={class_path: ppo, init_args: {lam: 0.9, advantage_norm: null}}",
            f"critic={{model: {{path: '{MODEL}'}}, strategy: single, optimizer: {ADAM}}}",
            "rollout.groups_per_step=8", "rollout.samples_per_group=4", "data.init_args.num_eval=0",
            "policy.num_threads=1", "inference.init_args.num_threads=1", *overrides,
        ],
    )  # fmt: skip


def rows(run: Path) -> list[dict[str, float]]:
    """What every step logged, without times."""
    with (run / "metrics.csv").open() as file:
        return [
            {k: float(v) for k, v in row.items() if k.startswith(("rollout/reward", "train/", "critic/"))}
            for row in csv.DictReader(file)
        ]


class NoteSteps(Callback):
    """Writes a line per optimizer step: ranks get copies of callbacks, so nothing kept in one is seen here.

    Args:
        path: the file.
    """

    def __init__(self, *, path: Path) -> None:
        self.path = path

    @hookimpl
    def before_optimizer_step(self, role: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{role}\n")


@pytest.mark.slow
def test_a_critic_learns_wherever_it_lives(tmp_path: Path) -> None:
    fit = trainer(tmp_path, "max_steps=8", "critic.colocate_with=policy", "name=together")
    fit.callbacks = [NoteSteps(path=tmp_path / "steps")]
    run = fit.fit()
    assert (tmp_path / "steps").read_text().split() == ["policy", "critic"] * 16
    together = rows(run)
    errors = [row["critic/value_error"] for row in together]
    assert sum(errors[-4:]) / 4 < 0.85 * errors[0]
    apart = rows(trainer(tmp_path, "max_steps=3", "name=apart").fit())
    assert apart == together[:3]
    roles = run / "checkpoints" / "step-00000008" / "roles"
    assert sorted(role.name for role in roles.iterdir()) == ["critic", "policy"]
