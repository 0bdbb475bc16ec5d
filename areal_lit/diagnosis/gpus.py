"""GPUs of the machine, as the kernel shows them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from areal_lit.diagnosis.examination import Examination
from areal_lit.diagnosis.finding import Finding, ok, warning


def device_files(root: Path) -> list[str]:
    """Device files of NVIDIA's GPUs, sorted."""
    return sorted(f"/{path.relative_to(root)}" for path in root.glob("dev/nvidia[0-9]*"))


def gpus(examination: Examination) -> Iterator[Finding]:
    """What processes may see of the GPUs."""
    there = device_files(examination.root)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not there:
        yield ok("GPUs", f"{len(there)} on this machine")
        return
    shown = [name for name in visible.split(",") if name]
    found = f"{len(there)} on this machine, CUDA_VISIBLE_DEVICES shows {visible or 'none'}"
    beyond = [name for name in shown if name.isdecimal() and int(name) >= len(there)]
    if not shown or beyond:
        yield warning("GPUs", found, "unset CUDA_VISIBLE_DEVICES")
    else:
        yield ok("GPUs", found)
