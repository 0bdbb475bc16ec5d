"""A run in a real Jupyter kernel leaves one output, which was updated in place."""

from __future__ import annotations

import re

import nbclient
import nbformat
import pytest

CELL = """
from areal_lit.recipes import resolve

overrides = ["--max_steps", "3", "--runs_dir", {runs!r}, "--evaluation.at_end", "true", "--evaluation.max_prompts", "4"]
trainer = resolve(["quickstart_inline"], overrides).build()
path = trainer.fit()
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of jupyter's own packages
def test_a_run_leaves_one_display_of_its_last_state(tmp_path):
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(CELL.format(runs=str(tmp_path)))]
    client = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3")
    client.execute()
    outputs = notebook.cells[0].outputs
    (output,) = [output for output in outputs if output.output_type == "display_data"]
    assert len(outputs) <= 2, "beside it, at most what libraries say on the error stream"
    shown = re.sub(r"\x1b\[[0-9;]*m", "", output.data["text/plain"]).splitlines()
    assert shown[0].startswith("quickstart_inline  step 3/3 ")
    assert any(line.startswith("reward ") for line in shown)
    assert any(line.startswith("evaluation  step 3  arithmetic  reward") for line in shown)
    assert any(line.startswith("quickstart_inline: finished at step 3 of 3") for line in shown)
    assert not any(line.startswith("now ") for line in shown)
    assert f"  run      {tmp_path}/quickstart_inline  (metrics.csv, samples.jsonl, plots/)" in shown
    assert "white-space:pre" in output.data["text/html"]
