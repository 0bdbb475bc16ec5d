"""What areal-lit and plugins require is installed, in a version that suits everybody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from areal_lit.diagnosis.examination import Examination
from areal_lit.diagnosis.finding import Finding, error, ok, warning
from areal_lit.diagnosis.installed import Installed, installed_distributions, roots


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A requirement, and whose.

    Args:
        is_needed: False for an extra that may be left out; if it is there, the version counts.
    """

    owner: str
    requirement: Requirement
    is_needed: bool

    def __str__(self) -> str:
        return f"{self.owner} requires {self.requirement.name}{self.requirement.specifier}"


def requirements(examination: Examination) -> Iterator[Finding]:
    """No requirement of the roots, nor of what they require in turn, is missing or of another version."""
    installed = installed_distributions()
    wishes = wishes_of(roots(), installed)
    findings = list(dict.fromkeys(_clashes(wishes, installed)))
    yield from findings
    if not findings:
        yield ok("requirements", f"{len({wish.requirement.name for wish in wishes})}, all met")


def wishes_of(names: Sequence[str], installed: Installed) -> list[Wish]:
    """What distributions require, and what those require in turn."""
    wishes: list[Wish] = []
    pending = [(name, frozenset[str]()) for name in names]
    seen = set(pending)
    while pending:
        owner, extras = pending.pop()
        for distribution in installed.get(owner, ())[:1]:
            for wish in _wishes(owner, distribution, extras):
                if not wish.is_needed and owner not in names:
                    continue
                wishes.append(wish)
                step = (canonicalize_name(wish.requirement.name), frozenset(wish.requirement.extras))
                if wish.is_needed and step not in seen:
                    seen.add(step)
                    pending.append(step)
    return wishes


def _wishes(owner: str, distribution: metadata.Distribution, extras: frozenset[str]) -> Iterator[Wish]:
    all_extras = distribution.metadata.get_all("Provides-Extra") or []
    for text in distribution.requires or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # of another time; pip ignores it too
        if _holds(requirement, ["", *extras]):
            yield Wish(owner=owner, requirement=requirement, is_needed=True)
        elif _holds(requirement, all_extras):
            yield Wish(owner=owner, requirement=requirement, is_needed=False)


def _holds(requirement: Requirement, extras: Sequence[str]) -> bool:
    return requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)


def _clashes(wishes: Sequence[Wish], installed: Mapping[str, Sequence[metadata.Distribution]]) -> Iterator[Finding]:
    for wish in wishes:
        name = canonicalize_name(wish.requirement.name)
        advice = f"pip install '{wish.requirement.name}{wish.requirement.specifier}'"
        if name not in installed:
            if wish.is_needed:
                yield error(name, f"not installed, but {wish}", advice)
            continue
        version = installed[name][0].version
        if not wish.requirement.specifier.contains(version, prereleases=True):
            make = error if wish.is_needed else warning
            yield make(name, f"{version} is installed, but {wish}", advice)
