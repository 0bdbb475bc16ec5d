"""A run in one process leaves the objects it was made of as it found them."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import pytest
from child_processes import END_TIMEOUT_S

from areal_lit import recipes

SMALL = ("rollout.groups_per_step=2", "rollout.samples_per_group=4", "policy.num_threads=1", "max_steps=2")


@pytest.mark.slow
def test_an_inline_run_leaves_components_stateless_and_no_thread_behind(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    trainer = recipes.load("quickstart_inline", overrides=[f"runs_dir={tmp_path}", "callbacks=[]", *SMALL])
    parts = {"strategy": trainer.policy.strategy, "optimizer": trainer.policy.optimizer, "engine": trainer.inference}
    states = {name: pickle.dumps(part) for name, part in parts.items()}
    trainer.fit()
    assert {name: pickle.dumps(part) for name, part in parts.items()} == states
    begun = [thread for thread in threading.enumerate() if thread not in before]
    for thread in begun:
        thread.join(END_TIMEOUT_S)
    assert [thread.name for thread in begun if thread.is_alive()] == []
