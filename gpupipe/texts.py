"""Text of other hands for people: names of files and classes, keys, fields, URLs, what a server answers. Whoever wrote
it moves no cursor, begins no line, turns no direction of reading, and fills no log."""

from __future__ import annotations

import logging

__all__ = ["MOST_MESSAGE", "in_log", "printable", "utf8"]

MOST = 1000  # letters of one name; a path has 4,096 bytes at most, a key in a tar 65,536
MOST_MESSAGE = 4000  # of all that a message says
JOINERS = "\u200c\u200d"  # of which words of some languages, and emoji, are made


def printable(text: object, most: int = MOST) -> str:
    """What any terminal or log can have on a line: control characters, surrogates (bytes of file names that are no
    UTF-8), marks of direction and the like escaped as Python has them, and of a long text its ends."""
    text = _ends(str(text), most)
    return text if text.isprintable() else _ends("".join(map(_escaped, text)), most)


def utf8(name: str) -> str:
    """A name as data has it: bytes of file names that are no UTF-8 escaped, and no more."""
    return name.encode("utf-8", "backslashreplace").decode()


def _escaped(letter: str) -> str:
    return letter if letter.isprintable() or letter in JOINERS else letter.encode("unicode_escape").decode()


def _ends(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    told = f" ...({len(text):,} characters)... "
    tail = most // 3
    return text[: most - tail - len(told)] + told + text[-tail:]


def in_log(record: logging.LogRecord) -> bool:
    """A filter that makes what is logged printable."""
    record.msg, record.args = printable(record.getMessage(), MOST_MESSAGE), ()
    return True
