"""CHANGELOG.md and the version of the project agree, and a release is made of a tagged, dated version only."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEADING = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d|Unreleased)$", re.MULTILINE)
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}  # of Keep a Changelog


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what release_notes.py reads."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "release_notes.py", tmp_path / ".ci")
    for name in ("CHANGELOG.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def date(project: Path, text: str) -> None:
    """Write the date of the newest version."""
    changelog = project / "CHANGELOG.md"
    changelog.write_text(HEADING.sub(rf"## [\1] - {text}", changelog.read_text(), count=1))


def notes(project: Path, *tag: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(project / ".ci" / "release_notes.py"), *tag]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_newest_version_is_the_projects() -> None:
    versions = [
        tuple(map(int, number.split("."))) for number, _ in HEADING.findall((ROOT / "CHANGELOG.md").read_text())
    ]
    stated = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert stated is not None
    assert ".".join(map(str, versions[0])) == stated[1]
    assert versions == sorted(set(versions), reverse=True)


def test_the_changelog_has_the_usual_sections() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    headings = [line for line in lines if line.startswith("## ")]
    assert [line for line in headings if not HEADING.fullmatch(line)] == []
    kinds = {line.removeprefix("### ") for line in lines if line.startswith("### ")}
    assert kinds <= KINDS
    assert [line for line in headings[1:] if line.endswith("Unreleased")] == []


def test_the_version_stands_in_one_place() -> None:
    """What is installed knows it from its metadata."""
    stated = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert stated is not None
    sources = [*(ROOT / "gpupipe").rglob("*.py"), *(ROOT / "kernels").rglob("*.py"), ROOT / "setup.py"]
    assert [path for path in sources if f'"{stated[1]}"' in path.read_text()] == []


def test_notes_are_those_of_the_newest_version(project: Path) -> None:
    changelog = project / "CHANGELOG.md"
    older = changelog.read_text() + "\n## [0.0.1] - 2020-01-02\n\n### Fixed\n\n- an older thing\n"
    changelog.write_text(older)
    date(project, "2026-01-31")
    (number, _), *_ = HEADING.findall(changelog.read_text())
    printed = notes(project, f"v{number}")
    assert printed.returncode == 0, printed.stderr
    assert "### Added" in printed.stdout
    assert "an older thing" not in printed.stdout
    assert "## [" not in printed.stdout


@pytest.mark.parametrize(
    ("day", "tag", "message"),
    [
        ("2026-01-31", "v99.0.0", "the tag is v99.0.0"),
        ("Unreleased", "", "write the day"),
    ],
)
def test_other_tags_and_versions_without_a_date_are_refused(project: Path, day: str, tag: str, message: str) -> None:
    date(project, day)
    (number, _), *_ = HEADING.findall((project / "CHANGELOG.md").read_text())
    refused = notes(project, tag or f"v{number}")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert message in refused.stderr


def test_a_version_without_notes_is_refused(project: Path) -> None:
    text = (project / "pyproject.toml").read_text()
    (project / "pyproject.toml").write_text(re.sub(r'^version = ".+"$', 'version = "98.0.0"', text, flags=re.MULTILINE))
    refused = notes(project)
    assert refused.returncode == 1
    assert "pyproject.toml has 98.0.0" in refused.stderr
