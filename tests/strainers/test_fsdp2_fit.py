"""The quickstart with its policy sharded over two ranks: only the recipe's strategy and number of ranks change."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from areal_lit import recipes


@pytest.mark.slow
def test_a_sharded_policy_trains_and_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    options = [
        f"runs_dir={tmp_path}", "policy.strategy={class_path: strainer_fsdp2.FSDP2}", "policy.num_ranks=2",
        "rollout.groups_per_step=4", "rollout.samples_per_group=4", "loggers=[csv]", "callbacks=[]", "max_steps=3",
        "sync.probe_every=1",
    ]  # fmt: skip
    run = recipes.load("quickstart", overrides=options).fit()
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    assert [float(row["train/lr"]) for row in rows] == pytest.approx([1.5e-5, 3e-5, 4.5e-5])
    probes = [float(row["sync/probe_difference"]) for row in rows]
    assert max(probes) < 1e-5
