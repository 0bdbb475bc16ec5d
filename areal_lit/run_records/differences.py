"""In what runs differ: the keys of their recipes and versions whose values are not the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from areal_lit.leaves import leaves
from areal_lit.run_records.run import RunRecords

ABSENT = "absent"
_OF_THE_RUN_ITSELF = ("name", "runs_dir", "overwrite")


def differences(runs: Sequence[RunRecords]) -> dict[str, list[str]]:
    """One value per run, as text, for every dotted key whose values differ; ``absent`` where a run lacks it.

    Recipes come first (``policy.optimizer.init_args.lr``), then ``versions.torch``, ``versions.commit`` and the like.
    What must differ (``name``) is left out, and so are versions where a run recorded none.
    """
    flat = [dict(leaves({k: v for k, v in run.config.items() if k not in _OF_THE_RUN_ITSELF})) for run in runs]
    if all(run.versions for run in runs):
        for of_run, run in zip(flat, runs, strict=True):
            of_run.update(leaves(run.versions, "versions"))
    keys = dict.fromkeys(key for of_run in flat for key in of_run)
    values = {key: [_spelt(of_run[key]) if key in of_run else ABSENT for of_run in flat] for key in keys}
    return {key: row for key, row in values.items() if len(set(row)) > 1}


def _spelt(value: Any) -> str:
    """As YAML has it."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
