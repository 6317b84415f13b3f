"""Every page of the documentation runs: its blocks of code in order, in an empty folder, as a reader would type them.

What a page takes for granted (images, shards, a model), `tests/pages/<its path with _ for />.py` makes. Each of these
is optional there:

- `setup(folder, names)` before the blocks; a generator function goes on after them, to end what it started;
- `check(folder, names)` after them asserts what the page promises. `names` is what the blocks have defined, and beside
  that `printed`, what they have printed, and `after`, the names as they were at the end of each section, by heading;
- `NEEDS = ("timm",)`: libraries of the extras `trainers` and `video` without which the page is skipped.

Blocks of python share one namespace, in which `__name__` is the page's, so that what they define can be pickled; those
of bash run where they stand between them, with `gpupipe`, `python` and `torchrun` on PATH; yaml, json and toml are
parsed. A block with `title="FILE"` is added to that file in the folder, too. Blocks of console (what a test can't run),
diff and text are shown only, and those of py compiled, for they need a GPU.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import gpupipe

ROOT = Path(__file__).resolve().parents[1]
OF_PAGES = ROOT / "tests" / "pages"
SHOWN = {"console", "diff", "text"}
PARSED = {
    "json": json.loads,
    "py": lambda text: compile(text, "page", "exec"),
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
}
FENCE = re.compile(r"^( *)(`{3,})(\w*)([^\n`]*)\n(.*?)^\1\2 *$|^#+ ([^\n]+)$", re.DOTALL | re.MULTILINE)
SECONDS = 300  # of one block of bash, on a machine that is busy with others

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    """A block of code of a page. title: the file that it is a part of, or ""; line: where it begins."""

    language: str
    title: str
    text: str
    section: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    text, section, found = page.read_text(), "", []
    for match in FENCE.finditer(text):
        indent, _, language, options, code, heading = match.groups()
        section = heading or section
        if not heading:
            (title,) = re.findall(r'title="([^"]+)"', options) or [""]
            line = text.count("\n", 0, match.start()) + 2
            found.append(Block(language, title, textwrap.dedent(code) if indent else code, section, line))
    return found


def name_of(page: Path) -> str:
    path = page.relative_to(ROOT / "docs") if page.is_relative_to(ROOT / "docs") else page.relative_to(ROOT)
    return path.with_suffix("").as_posix().replace("/", "_")


def beside(page: Path) -> ModuleType:
    """The module of tests/pages that belongs to a page, an empty one where there is none."""
    path = OF_PAGES / f"{name_of(page)}.py"
    if not path.exists():
        return ModuleType(path.stem)
    spec = importlib.util.spec_from_file_location(f"beside_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def needs_of(page: Path) -> tuple[str, ...]:
    """Without importing the module, which may import what is needed."""
    path = OF_PAGES / f"{name_of(page)}.py"
    found = re.search(r"^NEEDS = (\(.*\))$", path.read_text() if path.exists() else "", re.MULTILINE)
    return tuple(re.findall(r'"([\w.]+)"', found[1])) if found else ()


def parameters() -> list[Any]:
    marks = {page: [pytest.mark.trainers(*needs)] if (needs := needs_of(page)) else [] for page in PAGES}
    return [pytest.param(page, marks=marks[page], id=name_of(page)) for page in PAGES]


@pytest.fixture
def names(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The namespace of a page's blocks: that of a module, so that classes in it can be pickled."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType(f"page_{name_of(request.getfixturevalue('page'))}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield module.__dict__
    for value in module.__dict__.values():
        if isinstance(value, gpupipe.Loader):
            value.close()


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """Lightning's `ddp` leaves LOCAL_RANK behind, by which a later Trainer waits for ranks that nobody starts."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of `gpupipe` and `python`, which are those that the tests run with."""
    folder = tmp_path_factory.mktemp("programs")
    for name, words in (("gpupipe", f"{sys.executable} -m gpupipe"), ("python", sys.executable)):
        (folder / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", parameters())
def test_page_runs(page: Path, names: dict[str, Any], tmp_path: Path, programs: Path) -> None:
    module = beside(page)
    with set_up(module, tmp_path, names):
        names["after"], names["printed"] = {}, ""
        for block in blocks_of(page):
            names["printed"] += run(block, page, names, programs)
            names["after"][block.section] = {name: value for name, value in names.items() if name != "after"}
        if hasattr(module, "check"):
            module.check(tmp_path, names)


@contextlib.contextmanager
def set_up(module: ModuleType, folder: Path, names: dict[str, Any]) -> Iterator[None]:
    begun = module.setup(folder, names) if hasattr(module, "setup") else None
    if begun is None:
        yield
    else:
        with contextlib.contextmanager(lambda: begun)():
            yield


def run(block: Block, page: Path, names: dict[str, Any], programs: Path) -> str:
    """What a block prints."""
    if block.title:
        with (Path.cwd() / block.title).open("a") as file:
            file.write(block.text + "\n")
    if block.language in PARSED:
        PARSED[block.language](block.text)
    elif block.language == "python":
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)  # the project's own page
        return printed.getvalue()
    elif block.language == "bash" and not block.title:
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, f"{page}:{block.line}: {done.stdout}{done.stderr}"
        return done.stdout
    return ""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_of_a_known_language(page: Path) -> None:
    blocks = blocks_of(page)
    known = {"python", "bash", *PARSED, *SHOWN}
    assert [f"{page}:{block.line}: {block.language}" for block in blocks if block.language not in known] == []
    assert len(re.findall(r"^ *```", page.read_text(), re.MULTILINE)) == 2 * len(blocks)


def test_what_is_made_for_a_page_has_its_page() -> None:
    pages = {name_of(page) for page in PAGES}
    assert {path.stem for path in OF_PAGES.glob("*.py")} <= pages
