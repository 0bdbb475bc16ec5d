"""Plugins can be imported. They are tried in a process of their own, which says where it stands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from areal_lit.diagnosis.examination import Examination
from areal_lit.diagnosis.finding import Finding, error, ok, warning
from areal_lit.diagnosis.probe import probe, shortened
from areal_lit.plugins import Plugin, Plugins


def plugins(examination: Examination) -> Iterator[Finding]:
    """Every installed plugin can be imported, and no name is claimed twice."""
    installed = list(Plugins.discover())
    yield from _claimed_twice(installed)
    report = probe("plugin_imports", timeout_s=examination.timeout_s)
    broken = {(value["kind"], value["path"]): value["broken"] for value in report.values if "broken" in value}
    if report.problem and report.values:
        last = report.values[-1]
        broken[last["kind"], last["path"]] = f"its import ended the process: {report.account}"
    elif report.problem:
        yield error("plugins", f"cannot be looked at: {report.account}", "pip install --force-reinstall areal-lit")
        return
    for plugin in installed:
        if reason := broken.get((plugin.kind, plugin.path)):
            owner = f"{plugin.distribution} {plugin.version}"
            yield error(
                f"{plugin.kind} {plugin.name}",
                f"of {owner} cannot be used:\n{shortened(reason)}",
                f"pip install --force-reinstall {plugin.distribution}, or pip uninstall {plugin.distribution}",
            )
    if not broken:
        yield ok("plugins", f"{len(installed)}, all can be imported")


def _claimed_twice(installed: list[Plugin]) -> Iterator[Finding]:
    claims: dict[tuple[str, str], list[Plugin]] = defaultdict(list)
    for plugin in installed:
        claims[plugin.kind, plugin.name].append(plugin)
    for (kind, name), claimants in claims.items():
        if len(claimants) > 1:
            owners = [f"{plugin.distribution} ({plugin.path})" for plugin in claimants]
            yield warning(
                f"{kind} {name}",
                f"claimed by {' and '.join(owners)}",
                f"name it by dotted path in recipes, or pip uninstall {claimants[-1].distribution}",
            )
