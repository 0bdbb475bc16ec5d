"""What children of the launcher ``local`` are started with: their command lines and environments."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from areal_lit.contracts.launcher import GroupSpec, ProcessSpec

WORKER = str(Path(__file__).with_name("worker.py"))
"""What every child runs first."""

SPIN_COUNT = "10000"
"""Idle threads spin for half a millisecond and then sleep: trainer, engine and rewards share the cores, and threads
that spin for long keep each other from running (steps of 0.2 s took 1.8 s); without any spinning, the many short
parallel regions of a step take 1.7 times as long."""


def serve(python: str, fd: int, log_name: str) -> list[str]:
    """The command of a child that takes its orders from a socket."""
    return [python or sys.executable, WORKER, "serve", str(os.getpid()), str(fd), log_name]


def execute(spec: ProcessSpec, ports: Sequence[int]) -> list[str]:
    """The command of a child that becomes another program: ``{port}``, ``{port0}``, ... in it are filled in."""
    names = {"port": ports[0], **{f"port{i}": port for i, port in enumerate(ports)}} if ports else {}
    argv = list(spec.argv)
    for name, port in names.items():
        argv = [part.replace(f"{{{name}}}", str(port)) for part in argv]
    return [sys.executable, WORKER, "exec", str(os.getpid()), *([spec.python] if spec.python else []), *argv]


def environment(spec: GroupSpec | ProcessSpec, *more: Mapping[str, str]) -> dict[str, str]:
    """This process's, with the limit on threads, ``more``, and the spec's own, of which the later win."""
    made = {**os.environ, "PYTHONUNBUFFERED": "1", **_threads(spec.num_threads)}
    for variables in (*more, spec.env):
        made |= variables
    return made


def rank_variables(spec: GroupSpec, rank: int, port: int) -> dict[str, str]:
    """By which torch.distributed finds the other ranks."""
    num_ranks = str(spec.num_ranks)
    return {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank),
        "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks,
    }  # fmt: skip


def _threads(num_threads: int) -> dict[str, str]:
    """The environment that limits a process to so many CPU threads; torch reads it at import."""
    if not num_threads:
        return {}
    return {"OMP_NUM_THREADS": str(num_threads), "MKL_NUM_THREADS": str(num_threads), "GOMP_SPINCOUNT": SPIN_COUNT}
