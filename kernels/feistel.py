"""A generalized Feistel network on pairs of digits: the permutation under a shuffled order, and the way through
two of them, there and back, under an order of blocks.

The C++ kernel takes 44 ns for each of 256 numbers and 19 for each of 4,096 (93 and 69 without AVX-512), NumPy 418 and
119 (one busy core of an Intel Xeon).
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels import native

__all__ = [
    *("Regions", "Words", "feistel", "feistel_reference", "lined", "lined_reference", "mix"),
    *("unlined", "unlined_reference"),
]

Words: TypeAlias = NDArray[np.uint64]
Numbers: TypeAlias = NDArray[np.int64]

_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFT = (np.uint64(30), np.uint64(27), np.uint64(31))


def feistel(x: Words, a: Words, b: Words, keys: Words, back: bool, portable: bool = False) -> Words:
    """A permutation of [0, a * b): each round adds a hash of one digit to the other, in turn. Back: takes it off, the
    last one first.

    x: (N,), each below a * b. a, b: values of its digits (x // b, x % b), from 1 to 2**31, (N,) or (1,).
    keys: (rounds, N) or (rounds, 1). portable: without what only some CPUs have.
    """
    library = native.library()
    if library is None:
        return feistel_reference(x, a, b, keys, back)
    numbers: Words = x.copy()
    a, b, keys = map(np.ascontiguousarray, (a, b, keys))
    assert {a.shape, b.shape, keys.shape[1:]} <= {(1,), x.shape}, (x.shape, a.shape, b.shape, keys.shape)
    arrays = [array.ctypes.data for array in (numbers, a, b, keys)]
    each = [len(a) > 1, keys.shape[1] > 1, back, portable]
    library.gp_feistel_numbers(ctypes.byref(native.Feistel(len(x), *arrays, len(keys), *each)))
    return numbers


def feistel_reference(x: Words, a: Words, b: Words, keys: Words, back: bool) -> Words:
    """As `feistel`, in NumPy: the definition."""
    left, right = x // b, x % b
    for number in range(len(keys))[:: -1 if back else 1]:
        if number % 2 == 0:
            left = _turned(left, mix(right ^ keys[number]) % a, a, back)
        else:
            right = _turned(right, mix(left ^ keys[number]) % b, b, back)
    whole: Words = left * b + right
    return whole


class Regions(NamedTuple):
    """Blocks of samples that stand in a line, which has regions whose samples are permuted.

    begins: where each block begins and the last ends, ascending from 0: in the line, or to go back in the dataset.
    moves:  from the places of each block to its samples, or back, (B,).
    ends:   where each region begins in the line, ascending from 0, and where the last ends, (R + 1,).
    a, b:   values of the digits of each region's places, (R,).
    keys:   of the permutations, (rounds, 1), which a region's number makes its own.
    """

    begins: Numbers
    moves: Numbers
    ends: Numbers
    a: Words
    b: Words
    keys: Words


def lined(places: Numbers, line: Regions, portable: bool = False) -> Numbers:
    """The samples at places of a line: each goes to another place of its region, and the sample there is taken, (N,).

    The C++ kernel takes 37 ns for each of 4,096, there or back, NumPy 140 with what is C++ of it (one busy core of an
    Intel Xeon, 1,281 blocks).
    """
    return _through(places, line, False, portable)[1]


def unlined(samples: Numbers, line: Regions, portable: bool = False) -> tuple[Numbers, Numbers]:
    """The way back: each sample's region, and its place there that `lined` goes out from, (N,) both."""
    return _through(samples, line, True, portable)


def _through(numbers: Numbers, line: Regions, back: bool, portable: bool) -> tuple[Numbers, Numbers]:
    library = native.library()
    if library is None:
        return unlined_reference(numbers, line) if back else (numbers, lined_reference(numbers, line))
    numbers = np.ascontiguousarray(numbers)
    found = np.empty((2, len(numbers)), np.int64)
    addresses = native.addresses([numbers, *line, *found]).tolist()
    rest = len(line.moves), len(line.a), len(line.keys), back, portable
    library.gp_line_numbers(ctypes.byref(native.Line(len(numbers), *addresses, *rest)))
    return found[0], found[1]


def lined_reference(places: Numbers, line: Regions) -> Numbers:
    """As `lined`, in NumPy: the definition."""
    regions, within = _permuted(places, line, False)
    places = line.ends[regions] + within
    samples: Numbers = places + line.moves[_last_below(line.begins, places)]
    return samples


def unlined_reference(samples: Numbers, line: Regions) -> tuple[Numbers, Numbers]:
    """As `unlined`, in NumPy: the definition."""
    return _permuted(samples + line.moves[_last_below(line.begins, samples)], line, True)


def _permuted(places: Numbers, line: Regions, back: bool) -> tuple[Numbers, Numbers]:
    """Their regions, and where they are sent there."""
    regions = _last_below(line.ends, places)
    within = (places - line.ends[regions]).astype(np.uint64)
    outside = np.arange(len(places))
    while len(outside):  # again as long as that leads beyond a region's size
        at = regions[outside]
        keys = mix(line.keys ^ at.astype(np.uint64))
        within[outside] = feistel(within[outside], line.a[at], line.b[at], keys, back)
        outside = outside[within[outside] >= np.diff(line.ends)[at].astype(np.uint64)]
    return regions, within.astype(np.int64)


def _last_below(ascending: Numbers, numbers: Numbers) -> Numbers:
    found: Numbers = np.searchsorted(ascending, numbers, side="right") - 1
    return found


def mix(x: Words) -> Words:
    """splitmix64's finalizer (Steele, Lea, Flood 2014): 64 bits that look random, for each 64 bits in."""
    x = (x ^ (x >> _SHIFT[0])) * _MIX[0]
    x = (x ^ (x >> _SHIFT[1])) * _MIX[1]
    mixed: Words = x ^ (x >> _SHIFT[2])
    return mixed


def _turned(digit: Words, by: Words, values: Words, back: bool) -> Words:
    """A digit of so many values, further by less than these, or back."""
    turned: Words = (digit + (values - by if back else by)) % values
    return turned
