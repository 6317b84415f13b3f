"""A browser shows the documentation's site at the widths of a desk and of a phone, with navigation and search."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from sites import built_site

MEASURES = Path(__file__).resolve().parent / "site_measures.js"
PAGES = [
    "index.html",
    "benchmarks.html",
    "concepts/orders.html",
    "guide/recipes.html",
    "migration/dataloader.html",
    "reference/loader.html",
    "reference/operations.html",
    "reliability.html",
]
WIDE, NARROW = 1280, 400
SEARCH = {"page": "index.html", "words": "elastic transform"}
SECONDS = 300  # on a machine that is busy with others
pytestmark = [pytest.mark.trainers("mkdocs", "mkdocstrings"), pytest.mark.slow, pytest.mark.timeout(600)]


class Server(ThreadingHTTPServer):
    """The site, a page that measures its pages, and a queue of what that page posts."""

    def __init__(self, site: Path) -> None:
        self.results: Queue[dict[str, Any]] = Queue()
        results = self.results

        class Handler(SimpleHTTPRequestHandler):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments, directory=str(site))

            def do_GET(self) -> None:
                if urlsplit(self.path).path == "/measures.html":
                    self.answer(f"<!doctype html><meta charset=utf-8><body><script>{MEASURES.read_text()}</script>")
                else:
                    super().do_GET()

            def do_POST(self) -> None:
                results.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.answer("")

            def answer(self, body: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *arguments: Any) -> None:
                """Nothing is printed."""

        super().__init__(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server_address[1]}"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the browser found, see site_measures.js, and the host that it was sent to."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    asked = quote(json.dumps({"pages": PAGES, "widths": [WIDE, NARROW], "search": SEARCH}))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--window-size=1400,1000"]
    flags.append(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    with Server(built_site(tmp_path_factory)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://{server.host}/measures.html?{asked}"
        browser = subprocess.Popen([chromium, *flags, url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return server.results.get(timeout=SECONDS) | {"host": server.host}
        finally:
            browser.terminate()
            browser.wait()
            server.shutdown()


def test_all_pages_were_looked_at(seen: dict[str, Any]) -> None:
    assert "error" not in seen
    assert [(one["page"], one["width"]) for one in seen["pages"]] == [(p, w) for p in PAGES for w in (WIDE, NARROW)]


def test_no_page_is_wider_than_the_screen(seen: dict[str, Any]) -> None:
    wider = [(one["page"], one["width"], one["overflow"]) for one in seen["pages"] if one["overflow"] > 0]
    assert wider == []


def test_all_pictures_are_there(seen: dict[str, Any]) -> None:
    assert [one["broken"] for one in seen["pages"] if one["broken"]] == []
    assert sum(one["pictures"] for one in seen["pages"]) >= 4


def test_the_navigation_can_be_used(seen: dict[str, Any]) -> None:
    """Tabs beside a column of links on a desk, a drawer that opens on a phone."""
    for one in seen["pages"]:
        if one["width"] == WIDE:
            assert (one["drawer"], one["tabs"] >= 6) == (0, True), one
        else:
            assert (one["drawer"], one["tabs"], one["closed"]) == (1, 0, 0), one
            assert one["links"] >= 2, one


def test_the_search_finds_a_page(seen: dict[str, Any]) -> None:
    found = {urlsplit(link).path for link in seen["search"]}
    assert {"/guide/augmentations.html", "/reference/operations.html"} & found, found


def test_no_other_host_is_asked(seen: dict[str, Any]) -> None:
    assert set(seen["hosts"]) == {seen["host"]}
