"""Docstrings are written to be read in a terminal; here they become Markdown.

In them arguments stand below each other, `name:   what it is`, with what does not fit on a line indented below it, and
examples begin with `>>>`: a list and a block of code, for Markdown.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

NAME = r"\*{0,2}[A-Za-z_][\w.]*"
ITEM = re.compile(rf"(?P<names>{NAME}(?:, {NAME})*):\s+(?P<text>\S.*)")


class Plain(griffe.Extension):
    """Called by mkdocstrings for each object."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(docstring: str) -> str:
    """The docstring, which griffe has freed of its indentation."""
    return "\n\n".join(map(_paragraph, re.split(r"\n[ \t]*\n", docstring.strip("\n"))))


def _paragraph(text: str) -> str:
    lines = text.split("\n")
    if lines[0].lstrip().startswith(">>>"):
        return "\n".join(["```pycon", *lines, "```"])
    if _is_list(lines):
        return "\n".join(_item(line) for line in lines)
    return text


def _is_list(lines: list[str]) -> bool:
    """Items alone, of which all but the first lines are indented."""
    return bool(ITEM.fullmatch(lines[0])) and all(line.startswith("  ") or ITEM.fullmatch(line) for line in lines)


def _item(line: str) -> str:
    match = ITEM.fullmatch(line)
    if match is None:
        return "    " + line.strip()
    names = ", ".join(f"`{name}`" for name in match["names"].split(", "))
    return f"- {names}: {match['text']}"
