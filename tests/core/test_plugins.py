from __future__ import annotations

import importlib
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from areal_lit.contracts import Callback, Filter
from areal_lit.plugins import Plugin, PluginError, Plugins, check_fingerprint, distributions, fingerprint, load_defaults

BROKEN = Path(__file__).parents[1] / "third_party" / "broken_plugin"


def write_distribution(site: Path, name: str, version: str, entries: Mapping[str, Mapping[str, str]]) -> None:
    """The metadata of an installed distribution, without its code."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        line for group, names in entries.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in names.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def on_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Puts a folder in front of sys.path for one test; its modules are forgotten afterwards."""
    before = set(sys.modules)

    def forget() -> None:
        importlib.invalidate_caches()
        distributions.distribution_of.cache_clear()
        distributions._declared_packages.cache_clear()

    def add(folder: Path) -> None:
        monkeypatch.syspath_prepend(str(folder))
        forget()

    yield add
    for name in set(sys.modules) - before:
        if name.startswith(("areal_broken", "outside_")):
            del sys.modules[name]
    forget()


@pytest.fixture
def broken_installed(tmp_path: Path, on_path: Callable[[Path], None]) -> None:
    project = tomllib.loads((BROKEN / "pyproject.toml").read_text())["project"]
    write_distribution(tmp_path, project["name"], project["version"], project["entry-points"])
    on_path(tmp_path)
    on_path(BROKEN)


def test_discovery_reads_metadata_and_imports_nothing(broken_installed: None) -> None:
    plugins = {(p.kind, p.name): p for p in Plugins.discover()}
    assert plugins["reward", "broken"].path == "areal_broken.reward.Broken"
    assert plugins["reward", "broken"].distribution == "areal-broken"
    assert ("algorithm", "grpo") in plugins
    assert "areal_broken" not in sys.modules


def test_a_broken_plugin_is_listed_and_hurts_nobody_else(broken_installed: None) -> None:
    plugins = Plugins.discover()
    assert plugins.load("filter", "equal_rewards").__name__ == "EqualRewards"
    reasons = {p.name: reason for p, reason in plugins.broken() if p.distribution == "areal-broken"}
    assert set(reasons) == {"broken", "missing", "from_the_future"}
    assert "libreward.so.7" in reasons["broken"]
    assert "Traceback" in reasons["broken"]


def test_selecting_a_broken_plugin_shows_the_real_traceback_and_its_distribution(broken_installed: None) -> None:
    with pytest.raises(PluginError, match=r"areal-broken 0\.3\.0.*\n(.*\n)*.*libreward\.so\.7"):
        Plugins.discover().load("reward", "broken")


def test_a_newer_contract_is_refused_with_the_way_out(broken_installed: None) -> None:
    with pytest.raises(
        PluginError, match=r"version 99 of the callback contract.*knows 1; upgrade areal-lit or install"
    ):
        Plugins.discover().load("callback", "from_the_future")


def test_a_class_that_is_not_there(broken_installed: None) -> None:
    with pytest.raises(PluginError, match=r"no 'NoSuchClass'"):
        Plugins.discover().load("filter", "missing")


def test_two_distributions_with_one_short_name_clash_until_a_path_is_given(
    tmp_path: Path, on_path: Callable[[Path], None]
) -> None:
    entry = {"areal_lit.filters": {"equal_rewards": "outside_filters:Mine"}}
    write_distribution(tmp_path, "outside-filters", "2.0", entry)
    (tmp_path / "outside_filters.py").write_text(
        "from areal_lit.contracts import Filter\nclass Mine(Filter):\n    def accept(self, group): return True\n"
    )
    on_path(tmp_path)
    plugins = Plugins.discover()
    with pytest.raises(PluginError, match=r"areal-lit .* and outside-filters 2\.0 .*dotted path"):
        plugins.find("filter", "equal_rewards")
    assert issubclass(plugins.load("filter", "outside_filters.Mine"), Filter)
    assert plugins.load("filter", "outside_filters:Mine") is plugins.load("filter", "outside_filters.Mine")


def test_one_distribution_twice_on_sys_path_is_no_clash(tmp_path: Path, on_path: Callable[[Path], None]) -> None:
    for folder in ("a", "b"):
        entry = {"areal_lit.filters": {"twice": "outside_twice:Twice"}}
        write_distribution(tmp_path / folder, "outside-twice", "1.0", entry)
        on_path(tmp_path / folder)
    assert Plugins.discover().find("filter", "twice").distribution == "outside-twice"


@pytest.mark.parametrize(
    ("name", "way_out"),
    [("inlin", "did you mean inline?"), ("LOCAL", "did you mean local?"), ("zzz", "known: inline, local")],
)
def test_an_unknown_name_gets_the_closest_or_else_the_sorted_known_ones(name: str, way_out: str) -> None:
    with pytest.raises(PluginError, match=rf"{re.escape(way_out)} \(or give a dotted path\)$"):
        Plugins.discover().find("launcher", name)


def test_a_class_of_another_kind_is_refused() -> None:
    plugins = Plugins.discover()
    with pytest.raises(PluginError, match=r"not a subclass of areal_lit\.contracts\.algorithm\.Algorithm"):
        plugins.load("algorithm", "areal_lit_filters.equal_rewards.EqualRewards")
    with pytest.raises(PluginError, match=r"json\.loads is a function, not a subclass"):
        plugins.load("algorithm", "json.loads")
    with pytest.raises(PluginError, match=r"there is no module 'no_such_package'"):
        plugins.load("algorithm", "no_such_package.Thing")


def test_plugins_are_ordered_by_kind_and_name_whatever_the_order_found() -> None:
    found = [
        Plugin(kind=kind, name=name, target="a:B", distribution="d", version="1")
        for kind, name in (("callback", "b"), ("reward", "z"), ("reward", "a"), ("algorithm", "q"))
    ]
    expected = [("algorithm", "q"), ("reward", "a"), ("reward", "z"), ("callback", "b")]
    assert [(p.kind, p.name) for p in Plugins(found)] == expected
    assert [(p.kind, p.name) for p in Plugins(reversed(found))] == expected


def test_defaults_stand_in_only_where_nothing_is_given() -> None:
    assert load_defaults("callback", []) == ()
    assert [type(item).__name__ for item in load_defaults("callback", None)] == ["Progress"]


def test_fingerprint_names_distribution_and_version_and_refuses_others() -> None:
    filter_class = Plugins.discover().load("filter", "equal_rewards")

    class Local(Callback):
        pass

    found = fingerprint([filter_class(), Local(), filter_class()])
    path = "areal_lit_filters.equal_rewards.EqualRewards"
    assert found[path].startswith("areal-lit ")
    check_fingerprint(found)
    with pytest.raises(RuntimeError, match=r"EqualRewards: areal-lit .* here, areal-lit 9\.9 on the controller"):
        check_fingerprint({path: "areal-lit 9.9"})
    with pytest.raises(RuntimeError, match=r"EqualRewards: no areal-elsewhere here, areal-elsewhere 1\.0 on the"):
        check_fingerprint({path: "areal-elsewhere 1.0"})
