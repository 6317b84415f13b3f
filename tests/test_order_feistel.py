"""Many keyed permutations at once, against one after the other and against plain Python."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from gpupipe.kernels import native
from gpupipe.kernels.feistel import feistel, feistel_reference, lined, lined_reference, unlined, unlined_reference
from gpupipe.order.blocks import lined_up, moves_back, regions
from gpupipe.order.feistel import ROUNDS, permute, round_keys, snug, square, subkeys, unpermute

MASK = 2**64 - 1


def mix(x: int) -> int:
    """splitmix64's finalizer, from its publication."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def slow(x: int, size: int, keys: list[int], a: int = 0) -> int:
    """One position, in Python's integers."""
    a = a or math.ceil(math.sqrt(size))
    b = -(-size // a)
    while True:
        left, right = divmod(x, b)
        for number, key in enumerate(keys):
            if number % 2 == 0:
                left = (left + mix(right ^ key) % a) % a
            else:
                right = (right + mix(left ^ key) % b) % b
        x = left * b + right
        if x < size:
            return x


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100, 1300, 2**40 + 7])
def test_agrees_with_plain_python(size: int) -> None:
    keys = round_keys(5, 6, 7 << 24)
    positions = np.unique(np.linspace(0, size - 1, 60).astype(np.int64))
    expected = [slow(int(x), size, [int(key) for key in keys[:, 0]]) for x in positions]
    assert permute(positions, square(size), keys).tolist() == expected


BOTH = [False, pytest.param(True, id="portable")]


@pytest.mark.skipif(native.library() is None, reason="without the C++ kernels")
@pytest.mark.parametrize("portable", BOTH)
@pytest.mark.parametrize("back", [False, pytest.param(True, id="back")])
def test_the_kernel_agrees_with_numpy(back: bool, portable: bool) -> None:
    """One domain and keys for all, or of each one's own; sizes from 1 to the largest, and rows beyond a block."""
    rng = np.random.default_rng(0)
    for count in (0, 1, 2, 127, 128, 129, 300):
        for sizes in (
            1,
            2,
            3,
            37,
            2**32 + 1,
            2**62 - 1,
            rng.integers(1, 1 << rng.integers(1, 62, count), dtype=np.int64),
        ):
            _, a, b = square(sizes)
            x = (rng.integers(0, 2**62, count).astype(np.uint64)) % np.broadcast_to(a * b, count)
            for keys in (round_keys(5, 6, 7 << 24), subkeys(round_keys(5, 6, 7 << 24), np.arange(count))):
                expected = feistel_reference(x, a, b, keys, back)
                assert feistel(x, a, b, keys, back, portable).tolist() == expected.tolist()


def test_extreme_digits_agree_with_numpy() -> None:
    """Where the quotients of hashes are largest, and rounding may carry them over."""
    edges = np.array([0, 1, 2**31 - 1, 2**31, 2**61, 2**62 - 1], np.uint64)
    for a, b in ((1, 1), (1, 2**31), (2**31, 1), (2**31, 2**31), (2**31 - 1, 2**31), (3, 2)):
        a_, b_ = np.array([a], np.uint64), np.array([b], np.uint64)
        x = np.tile(edges % np.uint64(a * b), 500)
        keys = subkeys(round_keys(1, 2, 3 << 24), np.arange(len(x)))
        for back in (False, True):
            assert feistel(x, a_, b_, keys, back).tolist() == feistel_reference(x, a_, b_, keys, back).tolist()
        assert feistel(feistel(x, a_, b_, keys, False), a_, b_, keys, True).tolist() == x.tolist()


@pytest.mark.skipif(native.library() is None, reason="without the C++ kernels")
@pytest.mark.parametrize("portable", BOTH)
@pytest.mark.parametrize("largest", [3, 1000, 2**40])
@pytest.mark.parametrize("sizes", ["equal", "by chance", "ascending"])
def test_the_kernel_leads_through_a_line_and_back_as_numpy_does(portable: bool, largest: int, sizes: str) -> None:
    """Blocks and regions of all sizes, 0 among them, one alone as well."""
    rng = np.random.default_rng(largest)
    for blocks, count in ((1, 1), (2, 5), (40, 129), (300, 1000), (20_000, 1000)):
        each = np.full(blocks, largest) if sizes == "equal" else rng.integers(0, largest, blocks)
        each = np.sort(each) if sizes == "ascending" else each
        begins = np.concatenate([[0], np.cumsum(each + (np.arange(blocks) == 0))])
        line, keys = lined_up(begins, 4 << 24, 1, 2), round_keys(5, 6, 7 << 24)
        ends = np.concatenate([[0], np.sort(rng.choice(begins, blocks // 3)), begins[-1:]])
        there, back = regions(line.begins, line.moves, ends, keys), regions(begins, moves_back(line), ends, keys)
        places = rng.integers(0, begins[-1], count)
        samples = lined(places, there, portable)
        np.testing.assert_array_equal(samples, lined_reference(places, there))
        at, within = unlined(samples, back, portable)
        np.testing.assert_array_equal(ends[at] + within, places)
        for ours, theirs in zip((at, within), unlined_reference(samples, back), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_unpermute_leads_back() -> None:
    rng = np.random.default_rng(1)
    sizes = np.concatenate([np.arange(1, 60), rng.integers(1, 2**62, 200)])
    keys = subkeys(round_keys(1, 2, 3 << 24), np.arange(len(sizes)))
    positions = rng.integers(0, sizes)
    for domain in (square(sizes), snug(np.minimum(sizes, 2**50))):
        there = np.minimum(positions, domain.size.astype(np.int64) - 1)
        assert unpermute(permute(there, domain, keys), domain, keys).tolist() == there.tolist()


def test_many_permutations_at_once_are_those_one_by_one() -> None:
    rng = np.random.default_rng(0)
    sizes = np.concatenate([np.arange(1, 40), rng.integers(1, 10**12, 60)])
    numbers = rng.integers(0, 2**40, len(sizes))
    positions = rng.integers(0, sizes)
    keys = round_keys(1, 2, 3 << 24)
    together = permute(positions, square(sizes), subkeys(keys, numbers))
    for row, (position, size, number) in enumerate(zip(positions, sizes, numbers, strict=True)):
        own = [mix(int(key) ^ int(number)) for key in keys[:, 0]]
        assert slow(int(position), int(size), own) == together[row]


def test_snug_domains_hold_little_beyond_the_size() -> None:
    sizes = np.arange(1, 3000)
    size, a, b = (part.astype(np.int64) for part in snug(sizes))
    assert np.array_equal(size, sizes)
    root = np.ceil(np.sqrt(sizes)).astype(np.int64)
    assert ((root <= a) & (a <= 1.25 * root)).all()
    assert np.array_equal(b, -(-sizes // a))
    for at in (9, 99, 1299, 2998):
        widths = range(root[at], min(root[at] + 31, int(1.25 * root[at])) + 1)
        assert a[at] * b[at] == min(width * -(-int(sizes[at]) // width) for width in widths)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 97, 1300])
def test_snug_permutations_agree_with_plain_python(size: int) -> None:
    keys, domain = round_keys(5, 6, 7 << 24), snug(size)
    found = permute(np.arange(size), domain, keys)
    assert sorted(found.tolist()) == list(range(size))
    assert found.tolist() == [slow(x, size, [int(key) for key in keys[:, 0]], int(domain.a[0])) for x in range(size)]


@pytest.mark.parametrize("size", [3, 4, 5])
def test_all_permutations_of_few_are_equally_likely(size: int) -> None:
    keys = round_keys(1, 2, 3 << 24)
    positions, numbers = np.tile(np.arange(size), 12_000), np.repeat(np.arange(12_000), size)
    found = permute(positions, snug(size), subkeys(keys, numbers)).reshape(-1, size)
    counts = Counter(tuple(row) for row in found.tolist())
    assert stats.chisquare([counts[p] for p in itertools.permutations(range(size))]).pvalue > 1e-4


def test_keys_differ_in_all_that_they_depend_on() -> None:
    drawn = [round_keys(seed, epoch, op << 24) for seed in (0, 1) for epoch in (0, 1) for op in (4, 5)]
    assert len({keys.tobytes() for keys in drawn}) == len(drawn)
    assert subkeys(drawn[0], np.arange(50)).shape == (ROUNDS, 50)
    assert len(np.unique(subkeys(drawn[0], np.arange(50)))) == 50 * ROUNDS
