"""Installed distributions as files on ``sys.path``: by name, with where they lie and where their source is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

from packaging.utils import canonicalize_name

from areal_lit.contracts import KINDS

OURS = "areal-lit"

Installed = Mapping[str, Sequence[metadata.Distribution]]
"""By canonical name, in the order of ``sys.path``: python takes the first."""


def installed_distributions() -> Installed:
    """Every one, once per place. The metadata that a build left in a project's own source is no install."""
    found: dict[str, dict[Path, metadata.Distribution]] = {}
    for distribution in metadata.distributions():
        if name := distribution.metadata["Name"]:
            found.setdefault(canonicalize_name(name), {}).setdefault(place_of(distribution), distribution)
    result = {}
    for name, places in found.items():
        sources = [source.resolve() for each in places.values() if (source := editable_source(each)) is not None]
        result[name] = [
            each
            for place, each in places.items()
            if editable_source(each) is not None or not any(place.is_relative_to(source) for source in sources)
        ]
    return result


def place_of(distribution: metadata.Distribution) -> Path:
    """The directory of ``sys.path`` that holds its metadata."""
    return Path(str(distribution.locate_file(""))).resolve()


def editable_source(distribution: metadata.Distribution) -> Path | None:
    """The directory that an editable install refers to; None for any other install."""
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    is_editable = origin.get("dir_info", {}).get("editable", False)
    return Path(unquote(urlparse(origin["url"]).path)) if is_editable else None


def roots() -> list[str]:
    """areal-lit and the distributions that offer plugins, by canonical name."""
    owners = {
        canonicalize_name(entry.dist.name)
        for kind in KINDS.values()
        for entry in metadata.entry_points(group=kind.group)
        if entry.dist is not None
    }
    return [OURS, *sorted(owners - {OURS})]
