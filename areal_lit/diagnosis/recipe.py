"""What a recipe needs beyond the machine: its rules, its directory, and the interpreters that it names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from areal_lit.diagnosis.directory import directory
from areal_lit.diagnosis.examination import Examination
from areal_lit.diagnosis.finding import Finding, error, ok, warning
from areal_lit.diagnosis.probe import probe, probe_import, with_short_traceback
from areal_lit.diagnosis.software import imported


def recipe(examination: Examination) -> Iterator[Finding]:
    """The recipe can be run here; without one, the place where runs are kept by default."""
    if not examination.configs:
        yield from directory(examination)
        return
    arguments = json.dumps(examination.configs), json.dumps(examination.overrides)
    report = probe("recipe_rules", *arguments, timeout_s=examination.timeout_s)
    if report.problem or not report.values:
        yield error("recipe", f"cannot be read: {report.account}", "areal-lit validate --config RECIPE")
        return
    said = report.values[-1]
    for problem in said["problems"]:
        found = with_short_traceback(problem)
        yield error("recipe", found, "areal-lit validate --config RECIPE says what else is wrong")
    if not said["problems"]:
        yield ok("recipe", f"{', '.join(examination.configs)}: all rules are kept")
    for taken in said.get("taken", ()):
        found, _, way_out = taken.rpartition("; ")
        yield warning("recipe", found, way_out)
    yield from directory(replace(examination, runs_dir=Path(said.get("runs_dir", examination.runs_dir))))
    for name, interpreter, module in said.get("engines", []):
        try:
            report = probe_import(module, interpreter=interpreter, timeout_s=examination.timeout_s)
        except OSError as failure:
            found = f"{interpreter} cannot be started: {failure}"
            yield error(name, found, "correct the path, or make that environment")
        else:
            yield imported(name, f"{interpreter} imports {module}", report, interpreter)
