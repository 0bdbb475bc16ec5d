"""Golden files: what a package computed on the cases, one row per case under each name; standard library and numpy.

{"package": "verl", "version": "0.9.1", "seed": 4, "checksum": "...", "outputs": {"grpo/loss": [...200], ...}}
"""

from __future__ import annotations

import importlib.metadata
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ragged_cases import NUM_CASES, SEED, Case, checksum

FOLDER = Path(__file__).parent
DIGITS = 9


class Recorder:
    """Collects outputs case by case, and writes them to ``<name>.json``."""

    def __init__(self) -> None:
        self._outputs: dict[str, list[Any]] = defaultdict(list)

    def add(self, case: Case, name: str, **results: Any) -> None:
        """Numbers as they are; results per token, [B, S] arrays or tensors, on the case's directions."""
        for result, value in results.items():
            array = np.asarray(value, dtype=np.float64)
            row = case.projected(array) if array.shape == case.mask.shape else array.tolist()
            self._outputs[f"{name}/{result}"].append(_rounded(row))

    def write(self, name: str, *, package: str) -> None:
        """Raises ValueError for a name that lacks a case."""
        short = {output: len(rows) for output, rows in self._outputs.items() if len(rows) != NUM_CASES}
        if short:
            raise ValueError(f"every output needs {NUM_CASES} cases, got {short}")
        head = {"package": package, "version": importlib.metadata.version(package), "seed": SEED}
        text = json.dumps({**head, "checksum": checksum(), "outputs": self._outputs}, separators=(",", ":"))
        text = text.replace('"outputs":{', '"outputs":{\n').replace('],"', '],\n"')
        (FOLDER / f"{name}.json").write_text(text + "\n")


@dataclass(frozen=True, kw_only=True)
class Golden:
    """A golden file's content."""

    package: str
    version: str
    outputs: Mapping[str, list[Any]]


def read(name: str, folder: Path = FOLDER) -> Golden:
    """The content of ``<name>.json``. Raises ValueError where the cases are not those it was made from."""
    made = json.loads((folder / f"{name}.json").read_text())
    if (made["seed"], made["checksum"]) != (SEED, checksum()):
        raise ValueError(
            f"{name}.json was made from other cases (seed {made['seed']}, checksum {made['checksum'][:8]}) than "
            f"ragged_cases gives (seed {SEED}, checksum {checksum()[:8]}); make it again as README.md says"
        )
    return Golden(package=made["package"], version=made["version"], outputs=made["outputs"])


def _rounded(x: Any) -> Any:
    return [_rounded(each) for each in x] if isinstance(x, list) else float(f"{x:.{DIGITS}g}")
