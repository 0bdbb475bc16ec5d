"""Every fenced block of the README and the docs does what it shows.

The blocks of a document are taken in order, in one temporary directory that is on ``sys.path``:

- ``python`` is imported as a module (``file=NAME.py`` gives it that name); its functions ``test_*`` are then called,
  with a directory of their own if they take ``tmp_path``. Numbers of steps are cut to ``STEPS``.
- ``toml file=pyproject.toml`` is built with the modules so far, and the wheel installed for the commands below.
- ``yaml`` is a recipe that must resolve without a note and break no rule; ``with=RECIPE`` puts it on top of a shipped
  one, ``file=NAME.yaml`` keeps it for commands below.
- ``bash`` holds ``areal-lit`` commands, which are run; ``exit=N`` when they must end with that code.
- ``text`` is for people.

A block that cannot be run here says why: ``not-run="reason"``.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "recipes" / "README.md",
    *sorted(ROOT.joinpath("docs").glob("*.md")),
]
ATTRIBUTES = {
    "python": {"file", "not-run"},
    "toml": {"file", "not-run"},
    "yaml": {"file", "with", "not-run"},
    "bash": {"exit", "not-run"},
    "text": set(),
}
STEPS = 2
SHORT = {
    "fit": ["--max_steps", str(STEPS), "--rollout.groups_per_step", "4"],
    "evaluate": ["--evaluation.max_prompts", "4"],
}
FENCE = re.compile(r"^```(\S+)(.*)\n((?:(?!```).*\n)*)```$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block; ``place`` is ``file:line``."""

    language: str
    attributes: dict[str, str]
    text: str
    place: str


def blocks(document: Path) -> Iterator[Block]:
    text = document.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        words = [word.partition("=") for word in shlex.split(match[2])]
        yield Block(
            language=match[1],
            attributes={name: value for name, _, value in words},
            text=match[3],
            place=f"{document.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}",
        )


class Desk:
    """The directory in which the blocks of one document are tried."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.installed = directory / "installed"
        self.num_modules = 0

    def try_block(self, block: Block) -> None:
        if block.language != "text" and "not-run" not in block.attributes:
            getattr(self, block.language)(block)

    def python(self, block: Block) -> None:
        self.num_modules += 1
        name = block.attributes.get("file", f"snippet_{self.num_modules}.py")
        self._write(name, re.sub(r"\bmax_steps=\d+", f"max_steps={STEPS}", block.text))
        importlib.invalidate_caches()
        module = importlib.import_module(name.removesuffix(".py").replace("/", "."))
        for test_name, test in inspect.getmembers(module, inspect.isfunction):
            if test_name.startswith("test_"):
                own = self.directory / f"tmp_{self.num_modules}_{test_name}"
                own.mkdir()
                test(**({"tmp_path": own} if "tmp_path" in inspect.signature(test).parameters else {}))

    def toml(self, block: Block) -> None:
        source = self.directory / "source"
        self._write(f"source/{block.attributes['file']}", block.text)
        for module in self.directory.glob("*.py"):
            shutil.copy(module, source)
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(source / "dist")]
        built = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120)
        assert built.returncode == 0, built.stdout + built.stderr
        (wheel,) = source.glob("dist/*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            archive.extractall(self.installed)
        for entries in tomllib.loads(block.text)["project"]["entry-points"].values():
            for target in entries.values():
                assert f"{target.partition(':')[0]}.py" in names, f"the wheel lacks {target}; it holds {names}"

    def yaml(self, block: Block) -> None:
        from areal_lit import recipes

        path = self._write(block.attributes.get("file", "snippet.yaml"), block.text)
        base = [block.attributes["with"]] if "with" in block.attributes else []
        recipe = recipes.resolve([*base, path])
        assert recipe.notes == ()
        assert recipe.build().validate() == []

    def bash(self, block: Block) -> None:
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if not words:
                continue
            assert words[0] == "areal-lit", f"cannot run {line!r}: say why with not-run=..."
            arguments = [re.sub(r"step-\d{8}", f"step-{STEPS:08d}", word) for word in words[1:]]
            arguments += SHORT.get(arguments[0], [])
            if "--resume" in arguments:
                arguments += ["--max_steps", str(2 * STEPS)]
            ran = subprocess.run(
                [sys.executable, "-m", "areal_lit", *arguments],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(self.installed), *sys.path])},
                capture_output=True, text=True, timeout=240,
            )  # fmt: skip
            expected = int(block.attributes.get("exit", 0))
            assert ran.returncode == expected, f"{line!r} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}"

    def _write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield Desk(tmp_path)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_does_what_it_shows(document: Path, desk: Desk) -> None:
    for block in blocks(document):
        try:
            desk.try_block(block)
        # whatever a block raises is told with its place; the cause is chained
        except Exception as error:
            raise AssertionError(f"{block.place}: {error}") from error


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_is_run_or_says_why_not(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    found = list(blocks(document))
    assert len(found) * 2 == len(re.findall(r"^```", text, re.MULTILINE)), (
        "a fence is open, indented or has no language"
    )
    for block in found:
        assert block.language in ATTRIBUTES, f"{block.place}: {block.language}"
        assert set(block.attributes) <= ATTRIBUTES[block.language], f"{block.place}: {block.attributes}"
        assert len(block.attributes.get("not-run", "a good reason").split()) > 2, f"{block.place}: a reason, please"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_tests_that_are_named_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert [link for link in links if not (document.parent / link).exists()] == []
    tests = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.joinpath("tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", text))
    assert {name for name in named if f"def {name}(" not in tests} == set()


def test_the_run_from_python_in_the_readme_is_the_recipe() -> None:
    from areal_lit import recipes

    (block,) = [block for block in blocks(ROOT / "README.md") if block.attributes.get("file") == "train_sums.py"]
    names: dict[str, Any] = {"__name__": "train_sums"}
    exec(block.text.partition("print(trainer.fit())")[0], names)
    ours, recipe = (recipes.describe_config(t) for t in (names["trainer"], recipes.load("quickstart_inline")))
    differing = {key: (ours[key], recipe[key]) for key in recipe if ours[key] != recipe[key]}
    assert set(differing) == {"reward", "name"}, differing


def test_the_tree_in_the_readme_is_the_tree() -> None:
    (tree,) = [block.text for block in blocks(ROOT / "README.md") if block.text.startswith("areal_lit/")]
    folder = ROOT
    for line in tree.splitlines():
        path = line.split()[0]
        if not line.startswith(" "):
            folder = ROOT / path
        assert (ROOT / path if not line.startswith(" ") else folder / path).exists(), line
