"""Cores, memory, shared memory, open files and ports of this machine or container."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from areal_lit.diagnosis.examination import Examination
from areal_lit.diagnosis.finding import Finding, error, ok, warning
from areal_lit.scratch import LONGEST_BASE, abandoned

GIB = 2**30
LITTLE_MEMORY = 2 * GIB
LITTLE_SHARED_MEMORY = GIB
FEW_FILES, ENOUGH_FILES, PLENTY_OF_FILES = 256, 1024, 65536


def cores(examination: Examination) -> Iterator[Finding]:
    """How many cores there are to use, and whether OpenMP knows."""
    there = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    quota = cpu_quota(examination.root)
    usable = min(affinity, quota or affinity)
    found = f"{usable:g} of {there} to use (affinity {affinity}, quota {f'{quota:g}' if quota else 'none'})"
    threads = os.environ.get("OMP_NUM_THREADS", "")
    advice = f"export OMP_NUM_THREADS={max(1, int(usable))}"
    if threads.isdecimal() and int(threads) > usable:
        yield warning("cores", f"{found}; OMP_NUM_THREADS {threads} is more than those", advice)
    elif not threads and quota and quota < affinity:
        yield warning("cores", f"{found}; torch would start {affinity} threads, which the quota holds up", advice)
    elif usable < 2:
        yield warning("cores", f"{found}: training and generation take turns", "give it two cores, or launcher: inline")
    else:
        yield ok("cores", f"{found}, OMP_NUM_THREADS {threads or 'not set'}")


def memory(examination: Examination) -> Iterator[Finding]:
    """How much memory is free, the container's limit counted."""
    free = _meminfo(examination.root).get("MemAvailable", 0)
    limit = memory_limit(examination.root)
    if limit is not None:
        free = min(free, limit - (memory_use(examination.root) or 0))
    found = f"{free / GIB:.1f} GiB free, limit of the container {f'{limit / GIB:.1f} GiB' if limit else 'none'}"
    if free < LITTLE_MEMORY:
        yield warning("memory", found, "end other programs (`ps aux --sort -rss | head`), or raise the limit")
    else:
        yield ok("memory", found)


def shared_memory(examination: Examination) -> Iterator[Finding]:
    """/dev/shm, where the transport ``file`` puts weights, has room and no leftovers."""
    place = examination.root / "dev" / "shm"
    if not place.is_dir():
        yield warning("shared memory", f"there is no {place}", "weights go through the run's directory; mount a tmpfs")
        return
    size = shutil.disk_usage(place)
    found = f"{size.free / GIB:.1f} of {size.total / GIB:.1f} GiB free in {place}"
    if size.free < LITTLE_SHARED_MEMORY:
        yield warning("shared memory", f"{found}; it must hold a model's weights", "docker run --shm-size 8g")
    else:
        yield ok("shared memory", found)
    if left := abandoned(place):
        names = " ".join(map(str, left))
        yield warning("shared memory", f"{len(left)} directories of runs that are gone", f"rm -r {names}")


def open_files(examination: Examination) -> Iterator[Finding]:
    """The limit on open files leaves room for processes, sockets and logs."""
    soft, found, advice = limit_on_open_files()
    if soft < ENOUGH_FILES:
        yield (error if soft < FEW_FILES else warning)("open files", found, advice)
    else:
        yield ok("open files", found)


def limit_on_open_files() -> tuple[int, str, str]:
    """The limit of this process, the same in words, and how to raise it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = f"ulimit -n {min(hard, PLENTY_OF_FILES) if hard != resource.RLIM_INFINITY else PLENTY_OF_FILES}"
    if soft == hard:
        advice = (
            f"raise the hard limit: nofile in /etc/security/limits.conf, docker run --ulimit nofile={PLENTY_OF_FILES}"
        )
    return soft, f"limit {soft} (at most {hard})", advice


def ports(examination: Examination) -> Iterator[Finding]:
    """Processes can talk to each other on this machine."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            socket.create_connection(address, timeout=2).close()
    except OSError as failure:
        yield error("ports", f"127.0.0.1 cannot be used: {failure}", "ip link set lo up; look at the firewall's rules")
        return
    directory = tempfile.gettempdir()
    if len(directory) > LONGEST_BASE:
        yield warning("ports", f"TMPDIR {directory} is too long for sockets, /tmp is used", "export TMPDIR=/tmp")
    else:
        yield ok("ports", f"127.0.0.1 answers, on port {address[1]} for one")


def cpu_quota(root: Path) -> float | None:
    """Cores that the control group allows; None without a quota."""
    quotas = [quota for text in _of_groups(root, "cpu.max") if (quota := _quota(*text.split()))]
    quotas += [
        quota
        for text, period in zip(
            _of_groups(root, "cpu.cfs_quota_us", "cpu"), _of_groups(root, "cpu.cfs_period_us", "cpu"), strict=True
        )
        if (quota := _quota(text, period))
    ]
    return min(quotas, default=None)


def _quota(allowed: str, period: str = "100000") -> float | None:
    return int(allowed) / int(period) if allowed.isdecimal() and int(allowed) > 0 else None


def memory_limit(root: Path) -> int | None:
    """Bytes that the control group allows; None without a limit."""
    texts = [*_of_groups(root, "memory.max"), *_of_groups(root, "memory.limit_in_bytes", "memory")]
    total = _meminfo(root).get("MemTotal", 0)
    limits = [int(text) for text in texts if text.isdecimal() and int(text) < total]
    return min(limits, default=None)


def memory_use(root: Path) -> int | None:
    """Bytes that the control group uses and would not give back: files that are merely cached are left out."""
    texts = [*_of_groups(root, "memory.current"), *_of_groups(root, "memory.usage_in_bytes", "memory")]
    statistics = [*_of_groups(root, "memory.stat"), *_of_groups(root, "memory.stat", "memory")]
    pairs = dict(line.split() for line in statistics[0].splitlines()) if statistics else {}
    cached = int(pairs.get("total_inactive_file", pairs.get("inactive_file", 0)))
    return int(texts[0]) - cached if texts else None


def _of_groups(root: Path, name: str, controller: str = "") -> list[str]:
    """A file's text in this process's control group and in all around it, the innermost first."""
    group = Path("/")
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if (controller in controllers.split(",")) if controller else number == "0":
            group = Path(path)
    base = root / "sys" / "fs" / "cgroup" / controller
    places = [base / str(place).lstrip("/") for place in (group, *group.parents)]
    return [text for place in places if (text := _text(place / name).strip())]


def _meminfo(root: Path) -> Mapping[str, int]:
    lines = (line.split() for line in _text(root / "proc" / "meminfo").splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 1}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
