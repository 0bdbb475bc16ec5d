"""Examination: all checks at once, each on its own: one that crashes or hangs is reported and spoils no other."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from areal_lit.diagnosis.finding import Finding, warning

GRACE_S = 1.0
"""A check that waits for a process until the deadline may then still tell what it knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What is looked at.

    Args:
        configs, overrides: a recipe as on the command line; without configs none is looked at.
        runs_dir: where runs are kept, unless the recipe says otherwise.
        timeout_s: for all checks together; they run at once.
        root: of the file system whose ``proc``, ``sys`` and ``dev`` tell about the machine.
    """

    configs: Sequence[str] = ()
    overrides: Sequence[str] = ()
    runs_dir: Path = Path("runs")
    timeout_s: float = 20.0
    root: Path = Path("/")


CHECKS: Mapping[str, str] = {
    "python": "software:python",
    "torch": "software:torch",
    "engines": "software:engines",
    "requirements": "requirements:requirements",
    "distributions": "distributions:distributions",
    "plugins": "plugins:plugins",
    "recipe": "recipe:recipe",
    "GPUs": "gpus:gpus",
    "cores": "machine:cores",
    "memory": "machine:memory",
    "shared memory": "machine:shared_memory",
    "open files": "machine:open_files",
    "ports": "machine:ports",
}
"""Check -> module here and its function, imported when it runs, so that a broken dependency is a finding too."""


def examine(examination: Examination, checks: Mapping[str, str] = CHECKS) -> list[Finding]:
    """The findings of every check, in the order of the checks."""
    found: dict[str, list[Finding]] = {}

    def run(name: str, path: str) -> None:
        try:
            module, _, function = path.partition(":")
            check = getattr(import_module(f"{__package__}.{module}"), function)
            found[name] = list(check(examination))
        # whatever a check stumbles over is itself a finding; the others go on
        except (Exception, SystemExit) as failure:  # noqa: BLE001
            found[name] = [_crashed(name, failure)]

    threads = {item: threading.Thread(target=run, args=item, daemon=True) for item in checks.items()}
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + examination.timeout_s + GRACE_S
    for thread in threads.values():
        thread.join(max(0.0, deadline - time.monotonic()))
    return [finding for name in checks for finding in found.get(name, [_late(name, examination.timeout_s)])]


def _crashed(name: str, failure: BaseException) -> Finding:
    where = traceback.extract_tb(failure.__traceback__)[-1]
    place = f"{Path(where.filename).name}:{where.lineno}"
    return warning(name, f"this check failed: {type(failure).__name__}: {failure} ({place})", "report it as a bug")


def _late(name: str, timeout_s: float) -> Finding:
    return warning(name, f"this check gave no answer within {timeout_s:g} s", "give it longer: --timeout SECONDS")
