"""RunRecords: a run's directory as something to read."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from areal_lit.locks import RUN_LOCK, is_held
from areal_lit.run_records.metrics import Metrics, read_metrics
from areal_lit.run_records.reading import RecordsError, reading
from areal_lit.run_records.sample_index import SampleIndex
from areal_lit.secrets import redact

RECORDS = ("config.yaml", "metrics.csv", "samples.jsonl")


class RunRecords:
    """What a run has written so far.

    Args:
        path: its directory.

    Raises:
        RecordsError: nothing of a run is in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not _is_run(path):
            raise RecordsError(f"{path} holds no run: it has none of {', '.join(RECORDS)}; {_nearby(path)}")

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.path.resolve().name

    @property
    def is_in_use(self) -> bool:
        """Whether a process is at work in the directory; yes where that cannot be told."""
        return is_held(self.path / RUN_LOCK)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The recipe as resolved, without secrets; empty where it is missing or cannot be read."""
        return _table(self.path / "config.yaml")

    @cached_property
    def versions(self) -> Mapping[str, Any]:
        """Packages and commit of the process that wrote the newest part; empty for runs that recorded none."""
        return _table(self.path / "versions.json")

    def metrics(self) -> Metrics:
        """The metrics as they are now. Raises RecordsError where they cannot be read."""
        path = self.path / "metrics.csv"
        with reading(path):
            return read_metrics(path)

    def samples(self) -> SampleIndex:
        """The samples, none of which is read before ``refresh``. Raises RecordsError where they cannot be."""
        index = SampleIndex(self.path / "samples.jsonl")
        index.require_readable()
        return index


def find_runs(patterns: Sequence[str]) -> list[RunRecords]:
    """The runs that paths and glob patterns name, each once, those of a pattern in alphabetical order.

    Directories that a pattern matches and that hold no run are left out. Raises RecordsError where nothing is left.
    """
    found: dict[Path, RunRecords] = {}
    for pattern in patterns:
        paths = [Path(pattern)] if os.path.exists(pattern) else [Path(p) for p in sorted(glob.glob(pattern))]
        runs = [RunRecords(path) for path in paths if len(paths) == 1 or _is_run(path)]
        if not runs:
            raise RecordsError(f"no run is at {pattern}; {_nearby(Path(pattern))}")
        for run in runs:
            found.setdefault(run.path.resolve(), run)
    return list(found.values())


def _is_run(path: Path) -> bool:
    return any((path / name).exists() for name in RECORDS)


def _nearby(path: Path) -> str:
    """Runs to name instead."""
    beside = path.parent if path.parent.is_dir() else Path("runs")
    for place in (path, beside):
        names = sorted(str(inside) for inside in place.glob("*") if _is_run(inside))
        if names:
            return f"there are {', '.join(names[:5])}{' and others' if len(names) > 5 else ''}"
    return "give the directory of a run, like runs/quickstart"


def _table(path: Path) -> Mapping[str, Any]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError):  # a run that was cut off may have left anything
        return {}
    return redact(value) if isinstance(value, dict) else {}
