"""What a recipe needs beyond the machine: its rules, its directory, and the interpreters that it names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from areal_lit.diagnosis.directory import directory
from areal_lit.diagnosis.examination import Examination
from areal_lit.diagnosis.finding import Finding, error, ok
from areal_lit.diagnosis.probe import probe
from areal_lit.diagnosis.software import importable

READ = """
import json, sys
from areal_lit.recipes import RecipeError, resolve
from areal_lit.validation import broken_rules
configs, overrides = map(json.loads, sys.argv[1:])
try:
    trainer = resolve(configs, overrides).build()
except RecipeError as error:
    print(json.dumps({"problems": str(error).splitlines()}))
    sys.exit()
specs = ()
if trainer.inference is not None:
    specs = trainer.inference.processes(trainer.policy.model, seed=trainer.seed, deterministic=trainer.deterministic)
print(json.dumps({
    "problems": broken_rules(trainer),
    "runs_dir": trainer.runs_dir,
    "engines": [(spec.name, spec.python, spec.target.partition(":")[0] or "sys") for spec in specs if spec.python],
}))
"""


def recipe(examination: Examination) -> Iterator[Finding]:
    """The recipe can be run here; without one, the place where runs are kept by default."""
    if not examination.configs:
        yield from directory(examination)
        return
    arguments = json.dumps(examination.configs), json.dumps(examination.overrides)
    report = probe(READ, *arguments, timeout_s=examination.timeout_s)
    if report.problem or not report.values:
        yield error("recipe", f"cannot be read: {report.account}", "areal-lit validate --config RECIPE")
        return
    said = report.values[-1]
    for problem in said["problems"]:
        yield error("recipe", problem, "areal-lit validate --config RECIPE says what else is wrong")
    if not said["problems"]:
        yield ok("recipe", f"{', '.join(examination.configs)}: all rules are kept")
    yield from directory(replace(examination, runs_dir=Path(said.get("runs_dir", examination.runs_dir))))
    for name, interpreter, module in said.get("engines", []):
        found = f"{interpreter} imports {module}"
        yield importable(name, module, found, examination.timeout_s, interpreter=interpreter)
