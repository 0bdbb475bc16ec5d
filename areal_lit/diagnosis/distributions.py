"""The distributions of areal-lit and of plugins: there once, as new as their source, and not shadowed."""

from __future__ import annotations

import importlib.util
import tomllib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from areal_lit.diagnosis.examination import Examination
from areal_lit.diagnosis.finding import Finding, error, ok, warning
from areal_lit.diagnosis.installed import editable_source, installed_distributions, place_of, roots


def distributions(examination: Examination) -> Iterator[Finding]:
    """Nothing is installed twice, and every root is what its source and its files say."""
    installed = installed_distributions()
    findings = [finding for name, found in installed.items() for finding in _doubles(name, found)]
    for name in roots():
        for distribution in installed.get(name, ())[:1]:
            findings += [*_editable(distribution), *_shadowed(distribution)]
    yield from findings
    if not findings:
        yield ok("distributions", f"{len(installed)}, none twice; {', '.join(roots())} as their sources say")


def _doubles(name: str, found: Any) -> Iterator[Finding]:
    if len(found) < 2:
        return
    places = ", ".join(f"{each.version} in {place_of(each)}" for each in found)
    make = error if len({each.version for each in found}) > 1 else warning
    yield make(
        name,
        f"installed {len(found)} times: {places}; python takes the first",
        f"pip uninstall -y {name}, until none is left; then install it once",
    )


def _editable(distribution: metadata.Distribution) -> Iterator[Finding]:
    name, source = distribution.name, editable_source(distribution)
    if source is None:
        return
    if not source.is_dir():
        yield error(
            name,
            f"an editable install of {source}, which is gone",
            f"pip uninstall {name}, or pip install -e where it is now",
        )
        return
    if (source / "build" / "lib").is_dir():
        yield warning(
            name,
            f"{source}/build/lib is left of an earlier build; its files get into new wheels, deleted ones too",
            f"rm -r {source}/build",
        )
    if differing := sorted(_differing(source, distribution)):
        yield warning(
            name,
            f"its metadata is older than {source}/pyproject.toml; they differ in {', '.join(differing)}",
            f"pip install -e {source}",
        )


def _differing(source: Path, distribution: metadata.Distribution) -> Iterator[str]:
    """What a project says otherwise than the metadata made of it; what it computes is not compared."""
    try:
        project: Mapping[str, Any] = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return
    if "version" in project and project["version"] != distribution.version:
        yield f"version {project['version']}"
    if "dependencies" in project:
        required = {str(Requirement(text)) for text in distribution.requires or () if "extra ==" not in text}
        yield from {str(Requirement(text)) for text in project["dependencies"]} ^ required
    if "entry-points" in project:
        declared = {
            (group, name, value)
            for group, entries in project["entry-points"].items()
            for name, value in entries.items()
        }
        entries = {(entry.group, entry.name, entry.value) for entry in distribution.entry_points}
        groups = set(project["entry-points"])
        yield from {f"{group} {name}" for group, name, _ in declared ^ entries if group in groups}


def _shadowed(distribution: metadata.Distribution) -> Iterator[Finding]:
    """What its entry points name is imported from where it lies."""
    homes = [place_of(distribution)]
    if source := editable_source(distribution):
        homes.append(source.resolve())
    for package in sorted({entry.module.partition(".")[0] for entry in distribution.entry_points}):
        try:
            found = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            continue
        places = [] if found is None else [*(found.submodule_search_locations or ()), found.origin or ""]
        there = [Path(place).resolve() for place in places if Path(place).is_absolute()]
        if there and not any(place.is_relative_to(home) for place in there for home in homes):
            yield warning(
                package,
                f"imported from {there[0]}, not from {distribution.name} {distribution.version} in {homes[-1]}",
                "remove that copy, or take its directory off PYTHONPATH",
            )
