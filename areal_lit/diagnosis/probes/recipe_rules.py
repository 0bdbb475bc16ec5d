"""The rules that a recipe breaks, where its runs go, and what the interpreters that it names are to import.

Arguments: configs and overrides, each as JSON.
"""

from __future__ import annotations

import json
import sys

from areal_lit.recipes import RecipeError, resolve
from areal_lit.validation import broken_rules, name_rules


def main() -> None:
    configs, overrides = map(json.loads, sys.argv[1:])
    try:
        trainer = resolve(configs, overrides).build()
    except RecipeError as error:
        print(json.dumps({"problems": error.problems}))
        return
    engines: list[tuple[str, str, str]] = []
    if trainer.inference is not None:
        specs = trainer.inference.processes(
            trainer.policy.model, seed=trainer.seed, deterministic=trainer.deterministic
        )
        engines = [(spec.name, spec.python, spec.target.partition(":")[0] or "sys") for spec in specs if spec.python]
    found = {
        "problems": broken_rules(trainer),
        "taken": list(name_rules(trainer, None)),
        "runs_dir": str(trainer.runs_dir),
        "engines": engines,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
