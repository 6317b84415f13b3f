"""From the parts that are wanted to the ranges that are asked for: pure, so that a plan knows the requests of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from gpupipe.sources.remote.objects import Extent, Object

__all__ = ["GAP", "MOST", "Span", "coalesce", "pieces"]

GAP = 32 << 10
"""Bytes that are fetched for nothing rather than asking once more: a request costs some 120 us of CPU time, and takes a
place among those under way."""

MOST = 4 << 20
"""Bytes of one request. Several connections share what is longer, for storage limits each of them, and a request that
stands still is told by its time."""


class Span(NamedTuple):
    """A range that is asked for: one request, or several where a single wanted part has more than MOST bytes.

    parts: the positions of the wanted parts that lie in it.
    """

    object: Object
    offset: int
    size: int
    parts: tuple[int, ...]


def coalesce(wanted: Sequence[Extent], gap: int = GAP, most: int = MOST) -> list[Span]:
    """Ranges that hold all wanted parts, in the order in which the first part of each is wanted.

    Parts of an object that lie at most `gap` bytes apart are one range, as long as it has no more than `most` bytes.
    Empty parts, and what is wanted whole because nobody knows its size (-1), are ranges of their own.
    """
    by_object: defaultdict[Object, list[int]] = defaultdict(list)
    spans = []
    for number, extent in enumerate(wanted):
        if extent.size > 0:
            by_object[extent.object].append(number)
        else:
            spans.append(Span(*extent, (number,)))
    for numbers in by_object.values():
        spans += _of_one_object(wanted, numbers, gap, most)
    return sorted(spans, key=lambda span: min(span.parts))


def _of_one_object(wanted: Sequence[Extent], numbers: list[int], gap: int, most: int) -> list[Span]:
    numbers = sorted(numbers, key=lambda number: wanted[number].offset)
    spans: list[Span] = []
    for number in numbers:
        found, offset, size = wanted[number]
        if spans:
            last = spans[-1]
            end = max(last.offset + last.size, offset + size)
            within = end == last.offset + last.size
            if within or (offset - last.offset - last.size <= gap and end - last.offset <= most):
                spans[-1] = Span(found, last.offset, end - last.offset, (*last.parts, number))
                continue
        spans.append(Span(found, offset, size, (number,)))
    return spans


def pieces(span: Span, most: int = MOST) -> list[tuple[int, int]]:
    """Offset and size of the requests of a range: equal pieces of no more than `most` bytes."""
    if span.size <= most:
        return [(span.offset, span.size)]
    count = -(-span.size // most)
    cuts = [span.offset + span.size * number // count for number in range(count + 1)]
    return [(begin, end - begin) for begin, end in pairwise(cuts)]
