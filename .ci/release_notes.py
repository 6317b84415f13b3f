"""Print what CHANGELOG.md says of the version in pyproject.toml, for the page of its release.

    python .ci/release_notes.py [TAG]

With a tag, this refuses one of another version, and a version that has no date yet.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def version() -> str:
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit('pyproject.toml has no line `version = "..."`')
    return found[1]


def newest() -> tuple[str, str, str]:
    """The version at the top of the changelog, its date, or "Unreleased", and what was changed."""
    text = (ROOT / "CHANGELOG.md").read_text()
    found = re.search(r"^## \[(.+?)\] - (\S+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit("CHANGELOG.md has no heading `## [version] - date`")
    return found[1], found[2], found[3].strip()


def main(tag: str | None) -> str:
    number, date, notes = newest()
    if number != version():
        raise SystemExit(
            f"CHANGELOG.md begins with {number}, but pyproject.toml has {version()}: write down what is new"
        )
    if tag is not None and tag != f"v{number}":
        raise SystemExit(f"the tag is {tag}, but this is version {number}: tag it as v{number}")
    if tag is not None and not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        raise SystemExit(
            f"CHANGELOG.md has {date!r} for the date of {number}: write the day of the release, as 2026-01-31"
        )
    return notes


if __name__ == "__main__":
    print(main(sys.argv[1] if len(sys.argv) > 1 else None))
