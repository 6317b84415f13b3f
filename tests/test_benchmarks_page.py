"""docs/benchmarks.md has every stored measurement, by the hook that puts tables into it when the site is built."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "bench" / "results"


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_hook", ROOT / "docs/hooks/results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stored_tables() -> set[Path]:
    """Each .md below bench/results; of a folder without any its .csv files."""
    texts = set(RESULTS.rglob("*.md"))
    tables = {path for path in RESULTS.rglob("*.csv") if not any(path.parent.glob("*.md"))}
    above = {path for path in tables if any(path.parent.parent.glob("*.md")) and path.parent.parent != RESULTS}
    return texts | (tables - above)  # float32/ and uint8/ lie below the table of both


def test_every_stored_table_is_in_the_page(hook: ModuleType) -> None:
    named = re.findall(r"<!-- results: (\S+) -->", PAGE.read_text())
    assert len(named) == len(set(named))
    assert {RESULTS / name for name in named} == stored_tables()
    built = hook.on_page_markdown(PAGE.read_text())
    assert "<!--" not in built
    for path in stored_tables():
        lines = [line for line in path.read_text().splitlines() if line.startswith("|")]
        assert all(f"{line}\n" in built for line in lines), path


def test_every_picture_is_in_the_page_and_exists() -> None:
    shown = {(PAGE.parent / link).resolve() for link in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", PAGE.read_text())}
    assert shown == set(RESULTS.rglob("*.png"))


def test_csv_becomes_a_table(hook: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('what,img/s,CPU ms\n"kernel, avx2",1573.44,1.35896\nfloor,2,\n')
    assert hook.stored(tmp_path / "a.csv").splitlines() == [
        "| what | img/s | CPU ms |",
        "| --- | --- | --- |",
        "| kernel, avx2 | 1,573 | 1.36 |",
        "| floor | 2 |  |",
    ]


def test_what_is_not_stored_ends_the_build(hook: ModuleType) -> None:
    with pytest.raises(FileNotFoundError):
        hook.on_page_markdown("<!-- results: nothing/results.md -->")


def test_indented_marks_keep_their_indent(hook: ModuleType) -> None:
    built = hook.on_page_markdown('??? note "More"\n\n    <!-- results: cpu-2-cores/packing/results.md -->\n')
    assert all(line.startswith("    ") for line in built.splitlines()[2:] if line)
