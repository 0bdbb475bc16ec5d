"""The directory that runs write to: writable, roomy, on this machine, without leftovers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from areal_lit.diagnosis.examination import Examination
from areal_lit.diagnosis.finding import Finding, error, ok, warning
from areal_lit.run.directory import leftovers

GIB = 2**30
NO_ROOM, LITTLE_ROOM = GIB, 10 * GIB
REMOTE = ("nfs", "cifs", "smb", "9p", "fuse.", "lustre", "gpfs", "ceph", "beegfs")
MAX_SHOWN = 5


def directory(examination: Examination) -> Iterator[Finding]:
    """``runs_dir`` and what lies in it."""
    place = examination.runs_dir.expanduser().absolute()
    existing = next(path for path in (place, *place.parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as failure:
        yield error("run directory", f"{existing} cannot be written to: {failure}", "choose another: --runs_dir DIR")
        return
    free = shutil.disk_usage(existing).free
    kind = file_system(existing, examination.root)
    found = f"{place}: {free / GIB:.1f} GiB free, {kind or 'unknown file system'}"
    if free < LITTLE_ROOM:
        make = error if free < NO_ROOM else warning
        yield make("run directory", found, "free some, lower checkpoint.keep_last, or choose another: --runs_dir DIR")
    elif kind.startswith(REMOTE):
        yield warning(
            "run directory", f"{found}: locks and renames on a network are slow, and not all of them safe",
            "write runs to a local disk (--runs_dir DIR) and copy what is to stay",
        )  # fmt: skip
    else:
        yield ok("run directory", found)
    yield from _leftovers(place)


def file_system(path: Path, root: Path = Path("/")) -> str:
    """The type of the file system a path lies on (``ext4``); empty where it is not known."""
    mounts = {}
    try:
        for line in (root / "proc" / "self" / "mounts").read_text().splitlines():
            _, point, kind, *_ = line.split()
            mounts[Path(point.replace("\\040", " "))] = kind
    except OSError:
        return ""
    found = next((each for each in (path, *path.parents) if each in mounts), None)
    return mounts[found] if found else ""


def _leftovers(place: Path) -> Iterator[Finding]:
    """What runs that were killed left behind; a run that goes on is left alone."""
    left: list[Path] = []
    for run in sorted(place.iterdir()) if place.is_dir() else ():
        left += leftovers(run) if run.is_dir() else []
    if left:
        shown = " ".join(map(str, left[:MAX_SHOWN])) + (" ..." if len(left) > MAX_SHOWN else "")
        yield warning("run directory", f"{len(left)} leftovers of runs that were ended by force", f"rm -r {shown}")
