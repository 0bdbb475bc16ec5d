"""Probes: short programs in processes of their own, for what may crash, hang or take long to import."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

IMPORT = "import importlib, sys; sys.path.remove(''); importlib.import_module(sys.argv[1])"

TRACEBACK = "Traceback (most recent call last):\n"

IMPORT_SYSTEM = 'File "<frozen importlib.'

SHORT = 6
"""Lines of a traceback that say what went wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a probe printed and how it ended.

    Args:
        values: the JSON objects it printed, a line each; other lines are left out.
        problem: why it did not end well, in a line; empty if it did.
        tail: the last lines of its standard error.
    """

    values: Sequence[dict[str, Any]]
    problem: str = ""
    tail: str = ""

    @property
    def account(self) -> str:
        """The problem, and the lines that say more."""
        return f"{self.problem}:\n{self.tail}" if self.tail else self.problem


def probe(module: str, *arguments: str, timeout_s: float) -> Report:
    """Run a module of ``probes`` with this interpreter, which finds there what it finds here."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    command = [sys.executable, "-P", "-m", f"{__package__}.probes.{module}", *arguments]
    return _run(command, {**os.environ, "PYTHONPATH": path}, timeout_s)


def probe_import(module: str, *, interpreter: str, timeout_s: float) -> Report:
    """Have another interpreter, which may have no areal-lit, import a module as it finds it.

    Raises OSError when the interpreter cannot be started.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return _run([interpreter, "-c", IMPORT, module], environment, timeout_s)


def _run(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> Report:
    """Whatever becomes of the command ends within ``timeout_s``."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True
        )
        try:
            code_of_exit: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code_of_exit = None
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        err.seek(0)
        values = [value for line in out.read().splitlines() if (value := _json(line)) is not None]
        tail = shortened(err.read().decode(errors="replace"))
    if code_of_exit is None:
        return Report(values=values, problem=f"no answer within {timeout_s:g} s", tail=tail)
    if code_of_exit < 0:
        return Report(values=values, problem=f"killed by {signal.Signals(-code_of_exit).name}", tail=tail)
    return Report(values=values, problem=f"exit code {code_of_exit}" if code_of_exit else "", tail=tail)


def shortened(text: str) -> str:
    """The last lines of a traceback, without those of the import system."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and IMPORT_SYSTEM not in line]
    return "\n".join(lines[-SHORT:])


def with_short_traceback(text: str) -> str:
    """The text with no more of the traceback that it ends with, if any, than the last lines."""
    told, mark, trace = text.partition(TRACEBACK)
    return f"{told}{shortened(trace)}" if mark else text


def _json(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
