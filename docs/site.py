"""What the site needs beside the pages of this folder: pages from elsewhere in the repository, and links to them.

Pages are written to be read in the repository too, so their links are paths in it.
"""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "tests/golden/README.md": "golden_numbers.md",
}
"""Files of the repository that are pages, and their names on the site."""
PLACES = {**PAGES, "areal_lit/contracts": "contracts.md"}
"""What else has a page."""

FENCE = re.compile(r"^```(\w+)[^\n]+$", re.MULTILINE)
TITLE = re.compile(r"file=(\S+)")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> None:
    """Name the files that a pattern of the navigation stands for."""
    config.nav = [{title: _matching(where) for title, where in entry.items()} for entry in config.nav or []]


def on_files(files: Files, *, config: MkDocsConfig) -> None:
    """Add pages and whatever they link to, and have links lead there."""
    sources = {f"docs/{file.src_uri}": file for file in files.documentation_pages()}
    for path, page in PAGES.items():
        sources[path] = File.generated(config, page, content=(ROOT / path).read_text(encoding="utf-8"))
        files.append(sources[path])
    for path, file in sources.items():
        text = FENCE.sub(lambda fence: f"```{fence[1]}{_title(fence[0])}", file.content_string)
        file.content_string = LINK.sub(partial(_link, source=path, file=file, files=files, config=config), text)


def _matching(where: Any) -> Any:
    if not isinstance(where, str) or "*" not in where:
        return where
    return [path.relative_to(ROOT / "docs").as_posix() for path in sorted((ROOT / "docs").glob(where))]


def _title(fence: str) -> str:
    """What tests read in a fence means nothing to readers, but a file's name."""
    named = TITLE.search(fence)
    return f' title="{named[1]}"' if named else ""


def _link(link: re.Match[str], *, source: str, file: File, files: Files, config: MkDocsConfig) -> str:
    """A link of the page that a file of the repository became."""
    target = os.path.normpath(PurePosixPath(source).parent / link[1])
    if target.startswith("docs/"):
        page = target.removeprefix("docs/")
    elif target in PLACES:
        page = PLACES[target]
    elif (ROOT / target).is_file():
        page = f"source/{target}"
        if files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, abs_src_path=str(ROOT / target)))
    else:
        raise ValueError(f"{source} links to {link[1]}, which is no file; a site has no page for it")
    return f"]({os.path.relpath(page, PurePosixPath(file.src_uri).parent)}{link[2] or ''})"
