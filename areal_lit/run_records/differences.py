"""In what runs differ: the keys of their recipes and versions whose values are not the same everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from areal_lit.run_records.run import RunRecords

ABSENT = "absent"
_OF_THE_RUN_ITSELF = ("name", "runs_dir", "overwrite")


def differences(runs: Sequence[RunRecords]) -> dict[str, list[str]]:
    """One value per run, as text, for every dotted key whose values differ; ``absent`` where a run lacks it.

    Recipes come first (``policy.optimizer.init_args.lr``), then ``versions.torch``, ``versions.commit`` and the like.
    What must differ (``name``) is left out, and so are versions where a run recorded none.
    """
    flat = [dict(_leaves("", {k: v for k, v in run.config.items() if k not in _OF_THE_RUN_ITSELF})) for run in runs]
    if all(run.versions for run in runs):
        for leaves, run in zip(flat, runs, strict=True):
            leaves.update(_leaves("versions", run.versions))
    keys = dict.fromkeys(key for leaves in flat for key in leaves)
    values = {key: [leaves.get(key, ABSENT) for leaves in flat] for key in keys}
    return {key: row for key, row in values.items() if len(set(row)) > 1}


def _leaves(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Dotted key and text of every value that holds no others."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}" if key else str(name), inner)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _leaves(f"{key}.{index}", inner)
    else:
        yield key, _spelt(value)


def _spelt(value: Any) -> str:
    """As YAML has it."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
