"""Faults of an installation, planted as real files on ``sys.path``: what ``doctor`` finds and advises."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from areal_lit.diagnosis import Examination, Finding, examine

CHECKS = {name: f"{name}:{name}" for name in ("requirements", "distributions", "plugins", "recipe")}
SOFTWARE = {name: f"software:{name}" for name in ("python", "torch", "engines")}


NEWER = """
[project]
name = "planted"
version = "2.0"
dependencies = ["numpy"]
[project.entry-points."areal_lit.rewards"]
planted = "planted:Planted"
newer = "planted:Newer"
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory ahead of all others on ``sys.path``."""
    place = tmp_path / "site"
    place.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(place))
    return place


def write(place: Path, **files: str) -> None:
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


def install(
    site: Path,
    name: str,
    version: str = "1.0",
    *,
    requires: str = "",
    extra: str = "",
    entries: str = "",
    editable: Path | None = None,
) -> None:
    """The metadata of a distribution, as pip leaves it."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Provides-Extra: {extra}"] if extra else []
    lines += [f"Requires-Dist: {requires}"] if requires else []
    files = {"METADATA": "\n".join(lines) + "\n"}
    if entries:
        files["entry_points.txt"] = f"[areal_lit.rewards]\n{entries}\n"
    if editable is not None:
        files["direct_url.json"] = json.dumps({"url": editable.as_uri(), "dir_info": {"editable": True}})
    write(site / f"{name.replace('-', '_')}-{version}.dist-info", **files)


def about(subject: str, findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.subject == subject]


def look(check: str, *, timeout_s: float = 120.0, **examination: object) -> list[Finding]:
    path = {**CHECKS, **SOFTWARE}[check]
    return examine(Examination(timeout_s=timeout_s, **examination), {check: path})  # type: ignore[arg-type]


def test_a_broken_torch_is_told_with_the_end_of_its_traceback(site: Path) -> None:
    write(site, **{"torch.py": "raise ImportError('libcudart.so.12: cannot open shared object file')"})
    (finding,) = look("torch")
    assert finding.level == "error"
    assert finding.found.endswith("ImportError: libcudart.so.12: cannot open shared object file")
    assert len(finding.found.splitlines()) <= 7
    assert "pip install" in finding.advice


def test_a_torch_that_kills_its_process_or_hangs_harms_nobody_else(site: Path) -> None:
    write(site, **{"torch.py": "import os; os.kill(os.getpid(), 11)"})
    (finding,) = look("torch")
    assert "killed by SIGSEGV" in finding.found
    write(site, **{"torch.py": "import time; time.sleep(600)"})
    found = examine(Examination(timeout_s=1.0), SOFTWARE | {"ports": "machine:ports"})
    assert "no answer within 1 s" in about("torch", found)[0].found
    assert about("python", found)[0].level == about("ports", found)[0].level == "ok"


def test_a_check_that_crashes_reports_itself() -> None:
    found = examine(Examination(), {"broken": "software:no_such_check", "python": "software:python"})
    assert [(finding.level, finding.subject) for finding in found] == [("warning", "broken"), ("ok", "python")]
    assert "this check failed: AttributeError" in found[0].found


def test_missing_and_clashing_requirements_name_who_wants_them(site: Path) -> None:
    entries = "planted = planted:Planted"
    install(site, "planted-one", requires="no-such-distribution>=2", entries=entries)
    install(site, "planted-two", requires="numpy<1", entries=entries)
    found = [finding for finding in look("requirements") if "planted" in finding.found]
    assert {(finding.level, finding.subject, finding.advice) for finding in found} == {
        ("error", "no-such-distribution", "pip install 'no-such-distribution>=2'"),
        ("error", "numpy", "pip install 'numpy<1'"),
    }
    assert all("planted-one requires" in each.found or "planted-two requires" in each.found for each in found)


def test_an_extra_may_be_missing_but_not_of_another_version(site: Path) -> None:
    entries = "planted = planted:Planted"
    install(site, "planted-one", requires="absurd>1; extra == 'more'", extra="more", entries=entries)
    install(site, "planted-two", requires="numpy<1; extra == 'more'", extra="more", entries=entries)
    (finding,) = [finding for finding in look("requirements") if "planted" in finding.found]
    assert (finding.level, finding.subject) == ("warning", "numpy")


def test_a_distribution_that_is_there_twice_is_told_with_both_places(site: Path) -> None:
    install(site, "pyyaml", "0.1")
    (finding,) = about("pyyaml", look("distributions"))
    assert finding.level == "error"
    assert f"0.1 in {site}" in finding.found
    assert "installed 2 times" in finding.found


def test_what_a_build_leaves_in_a_project_is_no_second_install(site: Path, tmp_path: Path) -> None:
    for project, package_root in ("flat", "flat"), ("nested", "nested/src"):
        install(site, f"planted-{project}", editable=tmp_path / project)
        egg = f"planted_{project}.egg-info/PKG-INFO"
        write(tmp_path / package_root, **{egg: f"Metadata-Version: 2.1\nName: planted-{project}\nVersion: 0.9\n"})
        sys.path.append(str(tmp_path / package_root))
    assert [finding for finding in look("distributions") if "planted" in finding.subject] == []


def test_an_editable_install_whose_source_is_gone_is_told(site: Path, tmp_path: Path) -> None:
    install(site, "planted", entries="planted = planted:Planted", editable=tmp_path / "gone")
    (finding,) = about("planted", look("distributions"))
    assert finding.level == "error"
    assert f"{tmp_path}/gone, which is gone" in finding.found


def test_metadata_older_than_its_source_is_told_with_what_differs(site: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    entries = 'areal_lit.rewards = {planted = "planted:Planted", newer = "planted:Newer"}'
    project = f'[project]\nname = "planted"\nversion = "2.0"\ndependencies = ["numpy"]\nentry-points.{entries}\n'
    write(
        source,
        **{"pyproject.toml": project.replace("entry-points.areal_lit.rewards", 'entry-points."areal_lit.rewards"')},
    )
    write(source / "build" / "lib", **{"planted.py": ""})
    install(site, "planted", entries="planted = planted:Planted", editable=source)
    left, older = about("planted", look("distributions"))
    assert "build/lib is left of an earlier build" in left.found
    assert older.found.endswith("they differ in areal_lit.rewards newer, numpy, version 2.0")
    assert older.advice == f"pip install -e {source}"


def test_a_package_that_something_else_shadows_is_told(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "planted", entries="planted = planted_package:Planted")
    write(site, **{"planted_package.py": ""})
    assert about("planted_package", look("distributions")) == []
    write(tmp_path / "copy", **{"planted_package.py": ""})
    monkeypatch.syspath_prepend(str(tmp_path / "copy"))
    (finding,) = about("planted_package", look("distributions"))
    assert finding.found == f"imported from {tmp_path}/copy/planted_package.py, not from planted 1.0 in {site}"


def test_plugins_that_cannot_be_imported_are_named_with_their_distribution(site: Path) -> None:
    install(site, "planted-one", entries="raises = planted_raises:Raises\nabsent = planted_absent:Absent")
    install(site, "planted-two", entries="raises = planted_raises:Raises")
    write(site, **{"planted_raises.py": "1 / 0"})
    found = look("plugins")
    assert {finding.subject for finding in found} == {"reward raises", "reward absent"}
    clash, *broken = about("reward raises", found)
    assert clash.level == "warning"
    assert "claimed by planted-one (planted_raises.Raises) and planted-two" in clash.found
    assert all(finding.found.endswith("ZeroDivisionError: division by zero") for finding in broken)
    assert all("importlib" not in finding.found for finding in broken)
    (absent,) = about("reward absent", found)
    assert "there is no module 'planted_absent'" in absent.found
    assert "pip uninstall planted-one" in absent.advice


def test_a_plugin_whose_import_ends_the_process_is_the_one_that_is_named(site: Path) -> None:
    install(site, "planted", entries="kills = planted_kills:Kills")
    write(site, **{"planted_kills.py": "import os; os.kill(os.getpid(), 9)"})
    (finding,) = look("plugins")
    assert finding.subject == "reward kills"
    assert "its import ended the process: killed by SIGKILL" in finding.found


def test_a_recipe_brings_its_rules_its_directory_and_its_interpreters(site: Path) -> None:
    write(
        site,
        **{
            "planted_engine.py": "from dataclasses import replace\n"
            "from areal_lit_inference.transformers import Transformers\n"
            "class Elsewhere(Transformers):\n"
            "    def processes(self, spec, **options):\n"
            "        return [replace(each, python='/no/such/python') for each in super().processes(spec, **options)]\n"
        },
    )
    overrides = ("--inference", "planted_engine.Elsewhere", "--runs_dir", "elsewhere", "--max_steps", "0")
    write(Path("elsewhere/quickstart"), **{"config.yaml": "seed: 0\n", "samples.jsonl": "{}\n"})
    found = look("recipe", configs=("quickstart",), overrides=overrides)
    rule, name, place, engine = found
    assert (rule.level, rule.found) == ("error", "max_steps must be >= 1 or null for open-ended, got 0")
    assert (name.level, name.found) == ("warning", "elsewhere/quickstart holds a run already")
    assert "--resume auto" in name.advice
    assert place.found.startswith(f"{Path.cwd()}/elsewhere: ")
    assert (engine.level, engine.subject) == ("error", "engine-0")
    assert engine.found.startswith("/no/such/python cannot be started")


def test_a_broken_plugin_is_one_finding_of_the_recipe_that_names_it_with_the_end_of_its_traceback(site: Path) -> None:
    write(site, **{"planted_one.py": "import planted_two", "planted_two.py": "1 / 0"})
    overrides = ("--reward", "planted_one.Planted", "--max_step", "1")
    found = [finding.found for finding in look("recipe", configs=("quickstart",), overrides=overrides)]
    (broken,) = [each for each in found if "planted" in each]
    assert broken.splitlines()[0].endswith("failed to import planted_one.Planted:")
    assert broken.endswith("ZeroDivisionError: division by zero")
    assert len(broken.splitlines()) <= 7
    assert "importlib" not in broken
    assert any("did you mean max_steps?" in each for each in found), "other mistakes are told beside it"


def test_a_recipe_that_cannot_be_read_is_told_key_by_key(site: Path) -> None:
    found = look("recipe", configs=("quickstart",), overrides=("--max_step", "1", "--reward", "exact_macth"))
    assert [finding.level for finding in found][:2] == ["error", "error"]
    assert {"did you mean max_steps?" in finding.found for finding in found[:2]} == {True, False}
