"""In what runs differ: the keys of their recipes and versions whose values are not the same everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from areal_lit.run_records.run import RunRecords

_OF_THE_RUN_ITSELF = ("name", "runs_dir", "overwrite")
_ABSENT: Any = object()
_OUTSIDE: Any = object()
"""What a run has at a key below one that was told to be no section of it."""


def differences(runs: Sequence[RunRecords]) -> dict[str, list[str]]:
    """One value per run, as text, for every dotted key whose values differ; ``absent`` where a run lacks it.

    A section that a run lacks is one key: its class in the others, or ``given``. Recipes come first
    (``policy.optimizer.init_args.lr``), then ``versions.torch``, ``versions.commit`` and the like. What must differ
    (``name``) is left out, and so are versions where a run recorded none.
    """
    recipes = [{key: value for key, value in run.config.items() if key not in _OF_THE_RUN_ITSELF} for run in runs]
    versions = [run.versions for run in runs]
    return dict([*_differing("", recipes), *(_differing("versions", versions) if all(versions) else ())])


def _differing(key: str, values: Sequence[Any]) -> Iterator[tuple[str, list[str]]]:
    sections = [_section(value) for value in values]
    told = [value for value in values if value is not _OUTSIDE]
    inside = [section for section in sections if section is not None]
    if len(inside) < len(told) and len(set(map(_spelt, told))) > 1:
        yield key, [_spelt(value) for value in values]
    if len(inside) > 1:
        for name in dict.fromkeys(name for section in inside for name in section):
            below = [_OUTSIDE if section is None else section.get(name, _ABSENT) for section in sections]
            yield from _differing(f"{key}.{name}" if key else name, below)


def _section(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, list):
        return {str(index): item for index, item in enumerate(value)}
    return {str(name): item for name, item in value.items()} if isinstance(value, Mapping) else None


def _spelt(value: Any) -> str:
    """As YAML has it."""
    if value is _ABSENT or value is _OUTSIDE:
        return "absent"
    if isinstance(value, Mapping | list):
        return str(value["class_path"]) if isinstance(value, Mapping) and "class_path" in value else "given"
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
