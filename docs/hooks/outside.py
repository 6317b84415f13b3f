"""Files beside docs/ that its pages link to come into the site, so that links work there as they do in the repository.

Links are relative, as in `[figures](../../bench/results/cpu-2-cores/fields)`, which a viewer of the repository follows.
Here Markdown and programs become pages of the site, below `repository/` (some have a place of their own), a folder the
page of what it holds, pictures come as they are; and so on with what those pages link to.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PLACES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
LANGUAGES = {".py": "python", ".sh": "bash", ".yml": "yaml", ".yaml": "yaml", ".toml": "toml", "": "text"}
PART = re.compile(r"(^ *```.*?^ *```$|`[^`\n]*`)|(?<=\]\()(?!\w+:|#|/)([^)\s#]+)(?=[^)]*\))", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Every file that is linked to, from page to page."""
    for place in PLACES:
        if (ROOT / place).exists():
            _add(files, config, ROOT / place)
    waiting = [file for file in files if file.is_documentation_page()]
    while waiting:
        page = waiting.pop()
        for target in _targets(page):
            if not target.is_relative_to(DOCS) and files.get_file_from_path(_place(target)) is None:
                added = _add(files, config, target)
                if added.is_documentation_page():
                    waiting.append(added)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to what came from elsewhere lead to where it is in the site."""
    return _linked(markdown, page.file)


def _add(files: Files, config: MkDocsConfig, target: Path) -> File:
    options: dict[str, Any] = {"inclusion": InclusionLevel.NOT_IN_NAV}
    if target.suffix == ".md" or target.suffix in (".png", ".svg"):
        file = File.generated(config, _place(target), abs_src_path=str(target), **options)
    else:
        content = _folder(target) if target.is_dir() else _program(target)
        file = File.generated(config, _place(target), content=content, **options)
    files.append(file)
    return file


def _place(target: Path) -> str:
    """Where in the site a file or folder of the repository is."""
    path = target.relative_to(ROOT).as_posix()
    if path in PLACES:
        return PLACES[path]
    if target.is_dir():
        path += "/index.md"
    elif target.suffix not in (".md", ".png", ".svg"):
        path += ".md"
    return f"repository/{path.replace('README.md', 'index.md')}"


def _origin(file: File) -> Path:
    """The folder in the repository from which a page's links count."""
    if file.abs_src_path is not None:
        return Path(file.abs_src_path).parent
    return ROOT / posixpath.dirname(file.src_uri).removeprefix("repository/")


def _targets(file: File) -> list[Path]:
    found: list[Path] = []
    _each_link(file.content_string, lambda link: found.append(_resolved(file, link)) or link)
    return [target for target in found if target.exists()]


def _linked(markdown: str, file: File) -> str:
    def moved(link: str) -> str:
        target = _resolved(file, link)
        if not target.exists() or not target.is_relative_to(ROOT):
            return link  # MkDocs names what leads nowhere
        place = target.relative_to(DOCS).as_posix() if target.is_relative_to(DOCS) else _place(target)
        return posixpath.relpath(place, posixpath.dirname(file.src_uri) or ".")

    return _each_link(markdown, moved)


def _resolved(file: File, link: str) -> Path:
    return Path(os.path.normpath(_origin(file) / link))


def _each_link(markdown: str, moved: Callable[[str], str]) -> str:
    """The text with each relative link replaced, but for what is code."""
    return PART.sub(lambda match: match[1] or moved(match[2]), markdown)


def _program(path: Path) -> str:
    return f"# {path.relative_to(ROOT)}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}\n````\n"


def _folder(path: Path) -> str:
    """A list of the pages, pictures and folders in it."""
    names = sorted(child.name for child in path.iterdir() if child.is_dir() or child.suffix in (".md", ".png", ".svg"))
    lines = [f"- [{name}]({name})" for name in names if name != "logs"]
    return "\n".join([f"# {path.relative_to(ROOT)}", "", *lines, ""])
