"""The documentation as a site: it builds without a warning, each link and anchor leads somewhere, what is public is in
its reference, and nothing is loaded from another host."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from sites import built_site

import gpupipe
from gpupipe import kernels

ROOT = Path(__file__).resolve().parents[1]
pytestmark = [pytest.mark.trainers("mkdocs", "mkdocstrings"), pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory)


class Parsed(HTMLParser):
    """What a page has and asks for: ids, links, and files that it loads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and "href" in given:
            self.loaded.append(given["href"])
        if "src" in given:
            self.loaded.append(given["src"])


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Parsed]:
    return {page: Parsed(page) for page in sorted(site.rglob("*.html"))}


def dead(site: Path, page: Path, link: str, pages: dict[Path, Parsed]) -> str | None:
    """Why a link of a page leads nowhere; None for those that do, and for other hosts'."""
    parts = urlsplit(link)
    if parts.scheme in ("http", "https", "mailto", "data"):
        return None
    if parts.scheme or parts.netloc or parts.path.startswith("/"):
        return "not relative"
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    target = target / "index.html" if target.is_dir() else target
    if not target.is_relative_to(site) or not target.is_file():
        return "no such file"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
        return "no such anchor"
    return None


def test_every_link_and_anchor_leads_somewhere(site: Path, pages: dict[Path, Parsed]) -> None:
    found = {
        (page.relative_to(site).as_posix(), link): why
        for page, parsed in pages.items()
        if page.name != "404.html"  # served for any address, so its own links count from the host's root
        for link in (*parsed.links, *parsed.loaded)
        if (why := dead(site, page, link, pages)) is not None
    }
    assert found == {}
    assert sum(len(parsed.links) for parsed in pages.values()) > 5_000


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Parsed]) -> None:
    loaded = {link for parsed in pages.values() for link in parsed.loaded if not link.startswith("data:")}
    assert {link for link in loaded if urlsplit(link).netloc} == set()
    assert len(loaded) > 3


def test_the_reference_has_every_public_name_once(pages: dict[Path, Parsed], site: Path) -> None:
    written = [
        name
        for page in sorted((ROOT / "docs" / "reference").glob("*.md"))
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    ]
    shown = {one for page, parsed in pages.items() if page.parent == site / "reference" for one in parsed.ids}
    public = [f"gpupipe.{name}" for name in gpupipe.__all__] + [f"gpupipe.kernels.{name}" for name in kernels.__all__]
    assert len(set(written)) == len(written)
    assert [name for name in public if name not in written] == []
    assert len(shown) > len(public)


def test_docstrings_become_lists_and_code(site: Path) -> None:
    text = {name: (site / "reference" / f"{name}.html").read_text() for name in ("loader", "sources")}
    assert re.search(r"<li>\s*(<p>)?<code>batch_size</code>: samples per batch of this rank", text["loader"])
    assert "<blockquote>" not in text["sources"]  # what Markdown makes of >>>
