"""Which pass over memory does which operations: NumPy alone, on the host, and a pure function of a batch's program.

A *pass* reads each of its images once and writes it once. It may begin with one operation that needs more than a pixel
and its value, its *lead*: one that reads other pixels of the image (moves, sharpness, blur), one that needs the
image's statistics and then is a lookup table (contrast, autocontrast, equalize), or one of `OWN`. Any number of *steps*
follow, which take a pixel for itself. A sample's next lead begins its next pass. Most samples of RandAugment(2) need
one pass, some two, whatever the others drew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels.operations import ELASTIC, Op

__all__ = ["BLURS", "FIELDS", "OWN", "Pass", "READERS", "STATISTICS", "schedule"]  # noqa: RUF022, plain alphabetical order

ELASTICS = (Op.ELASTIC_NEAREST, Op.ELASTIC_BILINEAR)
BLURS = (Op.GAUSSIAN_BLUR, *ELASTICS)
"""Those that blur something, along rows before a pass and along columns in it."""
READERS = (
    *(Op.AFFINE_NEAREST, Op.AFFINE_BILINEAR, Op.AFFINE_BICUBIC, Op.PERSPECTIVE_NEAREST, Op.PERSPECTIVE_BILINEAR),
    *(Op.SHARPNESS, *BLURS),
)
STATISTICS = (Op.CONTRAST, Op.AUTOCONTRAST, Op.EQUALIZE)
OWN = (Op.NOISE, Op.MIX_BEGIN, Op.MIX_ADD, Op.MIX_END, Op.HSV, Op.HOLES)
"""Those that look at a pixel alone, but take more than one value, or have memory of their own."""
FIELDS = 6
"""Words of a task before the values of its lead: row, last, lead, first, count, reach."""

_IS_READER = np.isin(np.arange(max(Op) + 1), READERS)
_IS_LEAD = _IS_READER | np.isin(np.arange(max(Op) + 1), (*STATISTICS, *OWN))
# Tasks with tables come first, then those with blurs: the kernels before a pass take the first so many.
_RANK = np.full(max(Op) + 1, 2)
_RANK[list(STATISTICS)] = 0
_RANK[list(BLURS)] = 1
# How many pixels away from a place a lead reads, but for blurs, whose weights say so.
_REACH = np.zeros(max(Op) + 1, np.int64)
_REACH[[Op.AFFINE_BILINEAR, Op.PERSPECTIVE_BILINEAR, Op.SHARPNESS]] = 1
_REACH[Op.AFFINE_BICUBIC] = 2


@dataclass(frozen=True)
class Pass:
    """What one launch of the kernel `apply` does.

    tasks:  int32 (tasks, FIELDS + P), one for each sample of the pass: its row; whether this is its last pass, which
            writes the result; the lead's number, IDENTITY for none; the first of its steps and how many there are; how
            many pixels away from a place the lead reads; the bits of the lead's float32 values.
    steps:  int32 (steps, 2): an operation's number and the bits of its first value, in order.
    tables: so many tasks, the first ones, have a lead that needs a lookup table.
    blurs:  so many tasks after these blur.
    reach:  the largest of any of these tasks.
    bicubic, own, elastic: whether one of them has such a lead.
    """

    tasks: NDArray[np.int32]
    steps: NDArray[np.int32]
    tables: int
    blurs: int
    reach: int
    bicubic: bool
    own: bool
    elastic: bool


def schedule(ops: NDArray[np.int32], values: NDArray[np.float32], in_place: bool = False) -> list[Pass]:
    """The passes for a program as `augment` takes it.

    The first pass reads the images, each later one what the one before wrote; the last pass of a sample writes the
    result. in_place: the result replaces the images. Then samples without an operation take part in no pass, and none
    that reads other pixels is the first and the last in one.
    """
    if ops.shape[1] == 0:
        ops, values = np.zeros((len(ops), 1), np.int32), np.zeros((len(ops), 1, values.shape[2]), np.float32)
    places, counts = _places(ops)
    if in_place:
        reads = (_IS_READER[ops] & (places == 0)).any(axis=1)
        counts = np.where((counts == 1) & reads, 2, counts)
    else:
        counts = np.maximum(counts, 1)
    return [_pass(number, ops, values, places, counts) for number in range(counts.max(initial=0))]


def _places(ops: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of the pass of each operation, -1 for none, and how many passes each sample has."""
    places = np.full(ops.shape, -1, np.int64)
    current = np.full(len(ops), -1, np.int64)
    for step, column in enumerate(ops.T):
        active = column != Op.IDENTITY
        current += active & (_IS_LEAD[column] | (current < 0))
        places[active, step] = current[active]
    return places, current + 1


def _pass(
    number: int,
    ops: NDArray[np.int32],
    values: NDArray[np.float32],
    places: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> Pass:
    here = (places == number) & (counts > number)[:, None]
    leading = here & _IS_LEAD[ops]
    lead_at = leading.argmax(axis=1)
    every = np.arange(len(ops))
    lead = np.where(leading.any(axis=1), ops[every, lead_at], Op.IDENTITY)
    rows = np.flatnonzero(counts > number)
    rows = rows[np.argsort(_RANK[lead[rows]], kind="stable")]

    lead = lead[rows]
    numbers = np.where((lead != Op.IDENTITY)[:, None], values[rows, lead_at[rows]], np.float32(0))
    reach, elastic = _REACH[lead], np.isin(lead, ELASTICS)
    for blurring, first in ((lead == Op.GAUSSIAN_BLUR, 0), (elastic, ELASTIC)):
        weights = numbers[blurring, first:]
        reach[blurring] = ((weights != 0) * np.arange(weights.shape[1])).max(axis=1, initial=0)
    stepping = (here & ~leading)[rows]
    taken = stepping.sum(axis=1)
    stepped, at = stepping.nonzero()
    fields = (rows, counts[rows] == number + 1, lead, taken.cumsum() - taken, taken, reach)
    return Pass(
        tasks=np.concatenate([np.stack(fields, 1).astype(np.int32), _bits(numbers)], 1),
        steps=np.stack([ops[rows[stepped], at], _bits(values[rows[stepped], at, 0])], 1).astype(np.int32),
        tables=int((_RANK[lead] == 0).sum()),
        blurs=int((_RANK[lead] == 1).sum()),
        reach=int(reach.max(initial=0)),
        bicubic=bool((lead == Op.AFFINE_BICUBIC).any()),
        own=bool(np.isin(lead, OWN).any()),
        elastic=bool(elastic.any()),
    )


def _bits(numbers: NDArray[np.float32]) -> NDArray[np.int32]:
    return np.ascontiguousarray(numbers).view(np.int32)
