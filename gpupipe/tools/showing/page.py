"""A page of one file: what is in the data, and what the model sees of it. It needs no network and no JavaScript."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gpupipe.errors import ConfigError
from gpupipe.host.files import replacing
from gpupipe.sources import Source
from gpupipe.tools.showing.cards import Before, Card
from gpupipe.tools.showing.charts import bars, histogram, safe
from gpupipe.tools.showing.marks import colour
from gpupipe.tools.showing.style import STYLE
from gpupipe.tools.showing.survey import LISTED, Survey

__all__ = ["Page", "page_of", "write_page"]

# Whatever slips through, the browser loads and runs nothing.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Page:
    """What a page tells. name: of the data. facts: of the loader, by name. recipe: as text."""

    name: str
    source: Source
    facts: dict[str, str]
    recipe: str
    survey: Survey
    cards: Sequence[Card]


def page_of(page: Page) -> str:
    """The page as HTML."""
    title = f"What the model sees of {page.name}"
    links = "".join(f'<li><a href="#{_id(name)}">{name.capitalize()}</a></li>' for name in SECTIONS)
    sections = "".join(
        f'<section id="{_id(name)}"><h2>{name.capitalize()}</h2>{body(page)}</section>'
        for name, body in SECTIONS.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{safe(POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{safe(title)}</title><style>{STYLE}</style></head><body>"
        f'<header><h1>{safe(title)}</h1><nav aria-label="On this page"><ul>{links}</ul></nav></header>'
        f"<main>{sections}</main></body></html>\n"
    )


def write_page(page: Page, path: Path) -> None:
    """The file appears whole or not at all. Raises ConfigError."""
    try:
        with replacing(path) as file:
            file.write(page_of(page).encode())
    except OSError as error:
        raise ConfigError(f"the page can't be written to {path} ({error}); choose another place") from error


def _id(name: str) -> str:
    return name.replace(" ", "-")


# Sections.


def _data(page: Page) -> str:
    source = page.source
    fields = ", ".join(f"{name} ({type(field).__name__})" for name, field in source.fields.items())
    return _list({"samples": f"{len(source):,}", "fields": fields, **page.facts})


def _list(facts: dict[str, str]) -> str:
    return f"<dl>{''.join(f'<dt>{safe(name)}</dt><dd>{safe(value)}</dd>' for name, value in facts.items())}</dl>"


def _sizes(page: Page) -> str:
    survey = page.survey
    if not len(survey.sizes):
        return "<p>No image could be read.</p>"
    of = f"Of all {len(page.source):,} samples" if survey.of_all else _looked_at(page)
    sides = [histogram(survey.sizes[:, side], name) for side, name in ((1, "width"), (0, "height"))]
    return f'<p>{of}, in pixels as stored.</p><div class="charts">{"".join(sides)}</div>'


def _looked_at(page: Page) -> str:
    looked, there = page.survey.looked, len(page.source)
    return f"Of all {there:,} samples" if looked == there else f"Of {looked:,} of {there:,} samples, evenly spread"


def _classes(page: Page) -> str:
    classes = {name: counts for name, counts in page.survey.classes.items() if counts}
    if not classes:
        return "<p>The data has no class numbers.</p>"
    charts = []
    for name, counts in classes.items():
        of = "" if name == "samples" else f"<p>{safe(name)}. {_looked_at(page)}.</p>"
        charts.append(f"<div>{of}{bars(counts, name)}</div>")
    return f'<div class="charts">{"".join(charts)}</div>'


def _bad(page: Page) -> str:
    survey = page.survey
    scope = "" if survey.of_all else f" {_looked_at(page)} and those below."
    if not survey.bad:
        return f"<p>None is known.{scope}</p>"
    rows = "".join(
        f"<tr><td>{safe(page.source.key(index))}<br><span class=quiet>{safe(page.source.location(index))}</span></td>"
        f"<td>{safe(reason)}</td></tr>"
        for index, reason in sorted(survey.bad.items())[:LISTED]
    )
    more = survey.found - min(len(survey.bad), LISTED)
    rest = f"<p>{more} more are not listed; gpupipe index names them.</p>" if more else ""
    head = "<thead><tr><th scope=col>sample</th><th scope=col>reason</th></tr></thead>"
    return f"<p>{survey.found} known.{scope}</p><table>{head}<tbody>{rows}</tbody></table>{rest}"


def _recipe(page: Page) -> str:
    return "<pre>" + "\n".join(map(safe, page.recipe.splitlines())) + "</pre>"


def _samples(page: Page) -> str:
    told = (
        "<p>Each as stored, and as it comes out of the recipe. A numbered rectangle on what is stored is the part that "
        "the picture of this number shows.</p>"
    )
    classes = {number: name for card in page.cards for before in card.before for number, name in before.legend.items()}
    return told + _legend(classes) + f'<div class="cards">{"".join(_card(card) for card in page.cards)}</div>'


def _legend(classes: dict[int, str]) -> str:
    """Which colour a mask's class has."""
    if not classes:
        return ""
    shown = "".join(
        f'<li><span class="swatch" style="background: rgb{colour(number)}"></span> {safe(name)}</li>'
        for number, name in sorted(classes.items())
    )
    return f'<p>Masks lie over their image: 0 is left out, what is ignored is white.</p><ul class="legend">{shown}</ul>'


def _card(card: Card) -> str:
    several = len(card.before) > 1
    pictures = "".join([*(_before(card, one, several) for one in card.before), *_after(card, several)])
    facts = _list(dict(card.facts)) if card.facts else ""
    return f'<article><h3>{safe(card.key)}</h3>{facts}<div class="pictures">{pictures}</div></article>'


def _before(card: Card, before: Before, several: bool) -> str:
    name = f"{before.field}, " if several else ""
    said = f"<b>{safe(name)}as stored</b>: {before.size[0]} x {before.size[1]} pixels"
    return _figure(before.pixels, "JPEG", f"{card.key}: {name}as stored", said)


def _after(card: Card, several: bool) -> Iterator[str]:
    for after in card.after:
        name = f"{after.picture.field} " if several else ""
        height, width = after.picture.size
        said = f"<b>{safe(name)}{after.number}</b>: epoch {after.epoch}, {height} x {width} pixels"
        label = f"<br>{safe(after.label)}" if after.label else ""
        drawn = "".join(f"<li><b>{safe(name)}</b>: {safe(words)}</li>" for name, words in after.drawn)
        yield _figure(
            after.picture.pixels,
            "PNG",
            f"{card.key}: {name}{after.number}, after the recipe",
            f"{said}{label}<ul>{drawn}</ul>",
        )


def _figure(pixels: NDArray[np.uint8], kind: str, said: str, caption: str) -> str:
    """said: in the place of the picture, as text; caption: as HTML."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **({"quality": 88} if kind == "JPEG" else {}))
    data = f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
    height, width = pixels.shape[:2]
    image = f'<img src="{data}" width="{width}" height="{height}" alt="{safe(said)}">'
    wide = ' class="wide"' if width > 3 * height else ""  # a clip's frames, say, which need the whole row
    return f"<figure{wide}>{image}<figcaption>{caption}</figcaption></figure>"


SECTIONS = {
    "data": _data,
    "sizes": _sizes,
    "classes": _classes,
    "bad samples": _bad,
    "recipe": _recipe,
    "samples": _samples,
}
