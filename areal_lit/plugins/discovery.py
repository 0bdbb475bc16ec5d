"""Components by short name: found in entry-point metadata, imported only when selected.

``grpo`` is the short name of an ``algorithm``; ``areal_lit_algorithms.grpo.GRPO`` is its dotted path. Both are accepted
wherever a component is named.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from areal_lit.contracts import KINDS, Component
from areal_lit.names import closest
from areal_lit.plugins.distributions import distribution_of

DEFAULTS = {"logger": ("csv", "samples", "plots"), "callback": ("progress",)}
"""Used where neither recipe nor script names any; those that are not installed are left out."""


class PluginError(ValueError):
    """A component cannot be had: unknown, claimed twice, broken, of another kind, or too new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One entry point: what a distribution says it offers, nothing imported.

    Args:
        target: ``package.module:Class``.
    """

    kind: str
    name: str
    target: str
    distribution: str
    version: str

    @property
    def path(self) -> str:
        """``package.module.Class``, as recipes spell it."""
        return self.target.replace(":", ".")


def kind_of(cls: type) -> str:
    """The kind that a class or contract belongs to; empty for a class that is no component."""
    return next((name for name, kind in KINDS.items() if issubclass(cls, kind.base)), "")


class Plugins:
    """What is installed, by kind and short name. Iterating gives the plugins sorted by kind and name."""

    def __init__(self, plugins: Iterable[Plugin]) -> None:
        order = list(KINDS)
        self._plugins = sorted(set(plugins), key=lambda p: (order.index(p.kind), p.name, p.distribution))

    @classmethod
    def discover(cls) -> Plugins:
        """Read the metadata of every installed distribution. One that is twice on ``sys.path`` counts once."""
        installed = metadata.entry_points()
        return cls(
            Plugin(
                kind=name,
                name=entry.name,
                target=entry.value,
                distribution=entry.dist.name,
                version=entry.dist.version,
            )
            for name, kind in KINDS.items()
            for entry in installed.select(group=kind.group)
            if entry.dist is not None
        )

    def __iter__(self) -> Iterator[Plugin]:
        return iter(self._plugins)

    def names(self, kind: str) -> list[str]:
        """Short names of a kind."""
        return sorted({plugin.name for plugin in self._plugins if plugin.kind == kind})

    def find(self, kind: str, name: str) -> Plugin:
        """The plugin behind a short name. Raises PluginError when nobody or more than one distribution claims it."""
        found = [plugin for plugin in self._plugins if (plugin.kind, plugin.name) == (kind, name)]
        if not found:
            raise PluginError(
                f"no {kind} is called {name!r}; {closest(name, self.names(kind))} (or give a dotted path)"
            )
        if len(found) > 1:
            claims = " and ".join(f"{p.distribution} {p.version} ({p.path})" for p in found)
            raise PluginError(f"{kind} {name!r} is claimed by {claims}; give the dotted path of the one you mean")
        return found[0]

    def short(self, path: str) -> str:
        """The short name of a dotted path; the path itself where no entry point has it."""
        return next((plugin.name for plugin in self if plugin.path == path), path)

    def dotted(self, kind: str, name: str) -> str:
        """The dotted path for a short name or a dotted path."""
        return name.replace(":", ".") if set(name) & set(".:") else self.find(kind, name).path

    def load(self, kind: str, name: str, *, base: type | None = None) -> type[Component]:
        """Import a component's class and check that it is one.

        Raises PluginError: with the real traceback if its import fails; if it is no subclass of the kind's contract
        (or of ``base``); if it implements a newer contract than this areal-lit knows.
        """
        path = self.dotted(kind, name)
        expected = base or KINDS[kind].base
        cls = import_named(path, f"{kind} {name!r}")
        if not isinstance(cls, type) or not issubclass(cls, expected):
            what = f"a {cls.__name__ if isinstance(cls, type) else type(cls).__name__}"
            raise PluginError(
                f"{kind} {name!r}: {path} is {what}, not a subclass of {expected.__module__}.{expected.__name__}; "
                f"derive it from that class, or name another {kind}: {', '.join(self.names(kind))}"
            )
        assert issubclass(cls, Component)
        known = KINDS[kind].version
        if cls.contract_version > known:
            raise PluginError(
                f"{kind} {name!r} ({distribution_of(path)}) implements version {cls.contract_version} of the {kind} "
                f"contract, this areal-lit knows {known}; upgrade areal-lit or install an older release of the plugin"
            )
        return cls

    def broken(self) -> Iterator[tuple[Plugin, str]]:
        """Import every plugin; yield those that cannot be used, each with the reason or traceback."""
        for plugin in self._plugins:
            try:
                self.load(plugin.kind, plugin.path)
            except PluginError as error:
                yield plugin, str(error)


def load_defaults(kind: str, given: Sequence[Any] | None) -> tuple[Any, ...]:
    """What was given, or the defaults of the kind where nothing was (an empty list is none of them)."""
    if given is not None:
        return tuple(given)
    plugins = Plugins.discover()
    installed = plugins.names(kind)
    return tuple(plugins.load(kind, name)() for name in DEFAULTS[kind] if name in installed)


def import_named(path: str, what: str) -> Any:
    """The object at a dotted path. Raises PluginError, with the real traceback when code on the way failed.

    Args:
        path: of a module, a dot and a name in it.
        what: asks for it, for the error.
    """
    module, _, attributes = path.rpartition(".")
    names = [attributes]
    while True:
        try:
            found: Any = importlib.import_module(module)
            break
        except ModuleNotFoundError as error:
            is_ours = error.name is not None and f"{module}.".startswith(f"{error.name}.")
            if not is_ours:
                raise _failed(path, what) from error
            if error.name != module or "." not in module:
                raise PluginError(
                    f"{what}: there is no module {error.name!r} for {path!r}; is it installed? (pip install it, or set "
                    "PYTHONPATH to the directory of a file of your own)"
                ) from None
            module, _, attribute = module.rpartition(".")
            names.insert(0, attribute)
        # a plugin's import may raise anything, sys.exit() included; it is reported, with its traceback
        except (Exception, SystemExit) as error:
            raise _failed(path, what) from error
    for name in names:
        if not hasattr(found, name):
            raise PluginError(f"{what}: {found.__name__} has no {name!r}; {closest(name, _callables(found))}")
        found = getattr(found, name)
    return found


def _failed(path: str, what: str) -> PluginError:
    return PluginError(f"{what} ({distribution_of(path)}) failed to import {path}:\n{traceback.format_exc().rstrip()}")


def _callables(owner: Any) -> list[str]:
    return [name for name, value in vars(owner).items() if callable(value) and not name.startswith("_")]
