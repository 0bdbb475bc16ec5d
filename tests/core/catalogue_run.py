"""Validates every mistake of the catalogue as a first user does, and writes down what was told and what was started.

python -m catalogue_run OUTPUT, in the user's directory
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from catalogue_mistakes import MISTAKES

from areal_lit import recipes
from areal_lit.cli.main import main

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "socket.connect"}


def outcome(recipe: dict[str, Any]) -> dict[str, Any]:
    """Exit status and stderr of the command, and what the same recipe is told in Python."""
    Path("mistake.yaml").write_text(yaml.safe_dump(recipe))
    with redirect_stderr(StringIO()) as stderr:
        code = main(["validate", "--config", "quickstart", "--config", "mistake.yaml"])
    return {"code": code, "command": stderr.getvalue(), "python": told_by_python(recipe)}


def told_by_python(recipe: dict[str, Any]) -> str:
    try:
        return "\n".join(recipes.load("quickstart", recipe).validate())
    except recipes.RecipeError as error:
        return str(error)


def write_outcomes(output: Path) -> None:
    started: list[str] = []
    sys.addaudithook(lambda event, arguments: started.append(f"{event} {arguments}") if event in STARTS else None)
    sys.modules["datasets"] = None  # type: ignore[assignment]
    outcomes = {}
    for name, (recipe, _) in MISTAKES.items():
        started.clear()
        outcomes[name] = {**outcome(dict(recipe)), "started": list(started)}
    output.write_text(json.dumps(outcomes))


if __name__ == "__main__":
    write_outcomes(Path(sys.argv[1]))
