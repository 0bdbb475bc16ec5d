"""PPO through ``Trainer.fit``: two mini-batches, a critic that begins a step earlier, a KL weight that moves."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from areal_lit import hookimpl, recipes
from areal_lit.contracts import Callback
from areal_lit.trainer import Trainer

MODEL = "package:areal_lit_recipes/quickstart_model"
ALGORITHM = """{lam: 0.9, advantage_norm: null, value_warmup_steps: 1,
    kl_in: reward, kl_estimator: k1, kl_weight: 0.1, target_kl: 1.0e-4, kl_gain: 0.5}"""
ADAM = "{class_path: adamw, init_args: {lr: 1.0e-3}}"


def trainer(directory: Path, *overrides: str) -> Trainer:
    """The quickstart with PPO, a reference and a critic from the same model, and two optimizer steps per batch."""
    return recipes.load(
        "quickstart_inline",
        overrides=[
            f"runs_dir={directory}", "deterministic=true", "loggers=[csv]", "callbacks=[]", "num_minibatches=2",
            f"algorithm={{class_path: ppo, init_args: {ALGORITHM}}}",
            f"reference={{model: {{path: '{MODEL}'}}, strategy: single}}",
            f"critic={{model: {{path: '{MODEL}'}}, strategy: single, optimizer: {ADAM}}}",
            "rollout.groups_per_step=8", "rollout.samples_per_group=4", "data.init_args.num_eval=0",
            "policy.num_threads=1", "inference.init_args.num_threads=1", *overrides,
        ],
    )  # fmt: skip


def rows(run: Path) -> list[dict[str, float]]:
    """What every step logged, without times."""
    with (run / "metrics.csv").open() as file:
        return [
            {k: float(v) for k, v in row.items() if v and k.startswith(("rollout/reward", "train/", "critic/"))}
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
    fit = trainer(
        tmp_path, "max_steps=8", "critic.colocate_with=policy", "reference.colocate_with=policy", "name=together"
    )
    fit.callbacks = [NoteSteps(path=tmp_path / "steps")]
    run = fit.fit()
    assert (tmp_path / "steps").read_text().split() == ["critic"] * 2 + ["policy", "critic"] * 14
    together = rows(run)
    assert ("train/loss" in together[0], "train/loss" in together[1]) == (False, True)
    measured = together[1]["train/kl_reference"] / 1e-4 - 1  # of the first step that moves the policy
    moved = 0.1 * (1 + 0.5 * min(max(measured, -0.2), 0.2))
    assert [row["train/kl_weight"] for row in together[:3]] == pytest.approx([0.1, 0.1, moved])
    state = json.loads((run / "checkpoints" / "step-00000008" / "state.json").read_text())
    assert state["components"]["algorithm"]["state"]["kl_weight"] > together[-1]["train/kl_weight"]
    errors = [row["critic/value_error"] for row in together]
    assert sum(errors[-4:]) / 4 < 0.85 * errors[0]
    apart = rows(trainer(tmp_path, "max_steps=3", "name=apart").fit())
    assert apart == together[:3]
    roles = run / "checkpoints" / "step-00000008" / "roles"
    assert sorted(role.name for role in roles.iterdir()) == ["critic", "policy"]
