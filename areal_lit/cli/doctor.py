"""``areal-lit doctor``: what of this machine and installation stands in the way of a run."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from areal_lit.diagnosis import Examination, Finding, examine

MARKS = {"ok": "ok", "warning": "WARNING", "error": "ERROR"}
WIDTH = 110


def run(arguments: Sequence[str]) -> int:
    """0; 1 when an error was found."""
    parser = argparse.ArgumentParser(
        prog="areal-lit doctor", description="Look at python, torch, engines, distributions, plugins and the machine."
    )
    parser.add_argument("--config", action="append", default=[], help="look at what this recipe needs, too; repeatable")
    parser.add_argument("--json", action="store_true", help="level, subject, found and advice of each finding as JSON")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds for all checks together (default: 20)")
    parser.add_argument("--runs_dir", type=Path, default=Path("runs"), help="where runs are kept (default: runs)")
    parsed, overrides = parser.parse_known_args(list(arguments))
    if overrides and not parsed.config:
        parser.error(f"{' '.join(overrides)}: keys of a recipe go with --config RECIPE")
    findings = examine(
        Examination(configs=parsed.config, overrides=overrides, runs_dir=parsed.runs_dir, timeout_s=parsed.timeout)
    )
    if parsed.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        print("\n".join(line for finding in findings for line in lines(finding)))
    return int(any(finding.level == "error" for finding in findings))


def lines(finding: Finding) -> list[str]:
    """A finding for people: what was found, and an arrow to what to do about it."""
    margin = " " * 24
    first, *more = finding.found.splitlines()
    told = textwrap.wrap(f"{MARKS[finding.level]:<8}{finding.subject:<15} {first}", WIDTH, subsequent_indent=margin)
    told += [f"{margin}{line}" for line in more]
    if finding.advice:
        told += textwrap.wrap(finding.advice, WIDTH, initial_indent=f"{margin}-> ", subsequent_indent=f"{margin}   ")
    return told
