"""Which installed distribution a class comes from, and whether two processes agree on it."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata

from areal_lit.contracts import KINDS, Component
from areal_lit.versions import version_of

UNPACKAGED = "no distribution"


@cache
def _declared_packages() -> Mapping[str, str]:
    """Import package -> ``name version``, for packages that declare a component (cheap: entry points only)."""
    installed = metadata.entry_points()
    return {
        entry.module.partition(".")[0]: f"{entry.dist.name} {entry.dist.version}"
        for kind in KINDS.values()
        for entry in installed.select(group=kind.group)
        if entry.dist is not None
    }


@cache
def distribution_of(path: str) -> str:
    """``name version`` of the distribution a dotted path comes from; ``no distribution`` for a script or notebook."""
    package = path.partition(".")[0]
    if package in _declared_packages():
        return _declared_packages()[package]
    names = metadata.packages_distributions().get(package)
    return f"{names[0]} {metadata.version(names[0])}" if names else UNPACKAGED


def dotted_path(cls: type) -> str:
    """``package.module.Class``."""
    return f"{cls.__module__}.{cls.__qualname__}"


def origin(component: object) -> str:
    """``package.module.Class (name version)``: whose an object is, for messages."""
    path = dotted_path(type(component))
    return f"{path} ({distribution_of(path)})"


def fingerprint(components: Iterable[Component]) -> dict[str, str]:
    """Dotted path -> ``distribution version`` of each component's class.

    Ranks, engines and reward workers given this by the controller refuse other versions (``check_fingerprint``).
    """
    return {path: distribution_of(path) for path in sorted({dotted_path(type(item)) for item in components})}


def check_fingerprint(expected: Mapping[str, str]) -> None:
    """Raise RuntimeError naming each component whose distribution this process has not, or in another version.

    Costs a look-up per distribution, whatever else is installed. Classes of no distribution cannot be compared.
    """
    differences = [
        f"{path}: {ours} here, {theirs} on the controller"
        for path, theirs in expected.items()
        if theirs != UNPACKAGED and (ours := _installed(theirs.rpartition(" ")[0])) != theirs
    ]
    if differences:
        raise RuntimeError(
            f"host {socket.gethostname()} has other components than the controller; install the same versions there:\n"
            + "\n".join(f"  {difference}" for difference in differences)
        )


def _installed(name: str) -> str:
    version = version_of(name)
    return f"no {name}" if version is None else f"{name} {version}"
