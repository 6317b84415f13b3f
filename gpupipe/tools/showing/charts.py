"""Histograms as inline SVG, in the colours of the page that they are on."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import numpy as np
from numpy.typing import ArrayLike

from gpupipe.texts import printable

__all__ = ["bars", "histogram", "safe"]

BINS = 24
WIDTH, HEIGHT = 400, 150  # of a histogram, in units that grow with the page
ROW = 20  # of a bar
NAME, LETTERS = 140, 19  # the room for its name
MOST = 30  # bars


def safe(text: object) -> str:
    """Text for a page, whatever it is."""
    return escape(printable(text))


def histogram(values: ArrayLike, what: str) -> str:
    """How often whole numbers, one or more, lie in equal steps between the least and the greatest."""
    numbers = np.asarray(values)
    low, high = int(numbers.min()), int(numbers.max())
    counts, edges = np.histogram(numbers, bins=min(BINS, high - low + 1), range=(low, high + 1))
    wide, tall = WIDTH / len(counts), HEIGHT - 40
    columns = []
    for place, count in enumerate(counts.tolist()):
        height = tall * count / counts.max()
        first, last = int(np.ceil(edges[place])), int(np.ceil(edges[place + 1])) - 1
        columns.append(
            f'<rect class="bar" x="{place * wide:.1f}" y="{20 + tall - height:.1f}" width="{max(1, wide - 1):.1f}" '
            f'height="{height:.1f}"><title>{first} to {last}: {count}</title></rect>'
        )
    said = f"{what}: {low} to {high}, median {np.median(numbers):g}"
    texts = _text(0, 13, f"most: {counts.max()}") + _text(0, HEIGHT - 4, low) + _text(WIDTH, HEIGHT - 4, high, "end")
    line = f'<line class="axis" x1="0" y1="{20 + tall}" x2="{WIDTH}" y2="{20 + tall}"/>'
    return _figure(said, HEIGHT, "".join(columns) + line + texts)


def bars(counts: Mapping[str, int], what: str) -> str:
    """How often each is there, the most frequent first, and how many others there are."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    rows, most = ordered[:MOST], max(1, ordered[0][1])
    room = WIDTH - NAME - 50
    parts = []
    for place, (name, count) in enumerate(rows):
        short = name if len(name) <= LETTERS else name[: LETTERS - 1] + "…"
        y = place * ROW
        parts.append(
            f"<g><title>{safe(name)}: {count}</title>{_text(NAME - 6, y + 14, short, 'end')}"
            f'<rect class="bar" x="{NAME}" y="{y + 3}" width="{max(1, room * count / most):.1f}" height="{ROW - 6}"/>'
            f"{_text(NAME + room * count / most + 6, y + 14, count)}</g>"
        )
    spread = " to ".join(str(count) for count in sorted({ordered[-1][1], ordered[0][1]}))
    said = f"{what}: {len(counts)} classes, of each {spread}"
    rest = len(ordered) - len(rows)
    said += f"; {rest} others have {ordered[MOST][1]} or fewer" if rest else ""
    return _figure(said, ROW * len(rows), "".join(parts))


def _text(x: float, y: float, text: object, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{safe(text)}</text>'


def _figure(said: str, height: float, parts: str) -> str:
    return (
        f'<figure class="chart"><svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{safe(said)}">{parts}</svg>'
        f"<figcaption>{safe(said)}</figcaption></figure>"
    )
