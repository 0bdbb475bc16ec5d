"""Python, torch and the engines. Each is imported in a process of its own."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from areal_lit.diagnosis.examination import Examination
from areal_lit.diagnosis.finding import Finding, error, ok, warning
from areal_lit.diagnosis.gpus import device_files
from areal_lit.diagnosis.probe import Report, probe
from areal_lit.versions import version_of

OLDEST_PYTHON = (3, 11)

ENGINES = {"transformers": True, "vllm": False, "sglang": False}
"""Module -> whether areal-lit itself needs it."""


def python(examination: Examination) -> Iterator[Finding]:
    """The interpreter."""
    place = "a virtual environment" if sys.prefix != sys.base_prefix else "no virtual environment"
    found = f"{platform.python_version()} ({platform.system()} {platform.machine()}), {place} at {sys.prefix}"
    if sys.version_info < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        yield error("python", f"{found}; {oldest} or newer is needed", f"python{oldest} -m venv venv")
    elif platform.system() != "Linux":
        yield warning("python", found, "use Linux: elsewhere nothing guarantees that processes end with their run")
    else:
        yield ok("python", found)


def torch(examination: Examination) -> Iterator[Finding]:
    """torch works, and sees the GPUs that there are."""
    report = probe("torch_works", timeout_s=examination.timeout_s)
    if report.problem or not report.values:
        yield error("torch", f"cannot be used: {report.account}", "pip install --force-reinstall torch")
        return
    seen = report.values[-1]
    gpus: Sequence[str] = seen["gpus"]
    build = f"built for {seen['build']}" if seen["build"] else "built for the CPU"
    found = f"{seen['version']}, {build}, {seen['threads']} threads, GPUs: {', '.join(gpus) or 'none'}"
    there = device_files(examination.root)
    if there and not gpus:
        yield warning("torch", f"{found}, though there are {', '.join(there)}", _advice_on_gpus(seen))
    else:
        yield ok("torch", found)


def _advice_on_gpus(seen: dict[str, Any]) -> str:
    if not seen["build"]:
        return "install a build of torch for your GPUs: https://pytorch.org/get-started"
    return "look at CUDA_VISIBLE_DEVICES, and at nvidia-smi for a driver that is too old for this build"


def engines(examination: Examination) -> Iterator[Finding]:
    """The engines that are installed here can be imported."""
    versions = {module: version for module in ENGINES if (version := version_of(module))}
    for module, is_needed in ENGINES.items():
        if is_needed and module not in versions:
            yield error(module, "not installed", f"pip install {module}")
    with ThreadPoolExecutor() as at_once:
        reports = at_once.map(lambda module: probe("importing", module, timeout_s=examination.timeout_s), versions)
        for (module, version), report in zip(versions.items(), reports, strict=True):
            yield imported(module, version, report, sys.executable)


def imported(subject: str, found: str, report: Report, interpreter: str) -> Finding:
    """What a probe that imports a module says of it."""
    if report.problem:
        return error(subject, f"{found}, cannot be imported: {report.account}", f"{interpreter} -m pip check")
    return ok(subject, found)
