import numpy as np
import pytest

from gpupipe.kernels import native
from gpupipe.kernels.philox import philox4x32, philox4x32_reference, split64, uniform

# Random123's known-answer file (kat_vectors, philox4x32 10): counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


needs_kernels = pytest.mark.skipif(native.library() is None, reason="without the C++ kernels")
WAYS = [philox4x32_reference, pytest.param(philox4x32, marks=needs_kernels)]


@pytest.mark.parametrize("philox", WAYS)
@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_published_vectors(counter, key, expected, philox):
    assert tuple(int(word) for word in philox(counter, key)) == expected


@needs_kernels
@pytest.mark.parametrize(
    "shapes", [((5,), (), (), (3, 1)), ((), (), (), ()), ((0,), (), (), ()), ((2, 1), (2, 300), (), (300,))]
)
def test_both_give_the_same_words(shapes):
    rng = np.random.default_rng(1)
    counter = tuple(rng.integers(0, 2**32, shape, dtype=np.uint64) for shape in shapes)
    words, truth = philox4x32(counter, (7, 2**32 - 1)), philox4x32_reference(counter, (7, 2**32 - 1))
    assert (words.dtype, words.shape) == (truth.dtype, truth.shape)
    assert (words == truth).all()


def test_arrays_give_what_single_counters_give():
    counters = np.array([counter for counter, _, _ in KNOWN], dtype=np.uint64).T
    together = philox4x32(tuple(counters), (7, 9))
    for column, (counter, _, _) in enumerate(KNOWN):
        assert together[:, column].tolist() == philox4x32(counter, (7, 9)).tolist()


def test_words_broadcast():
    assert philox4x32((np.arange(5), 0, 1, np.arange(3)[:, None]), (0, 0)).shape == (4, 3, 5)


def test_split64():
    assert split64(0x1122334455667788) == (0x55667788, 0x11223344)


def test_uniform_stays_inside_the_unit_interval():
    ends = uniform(np.array([0, 2**32 - 1], dtype=np.uint64))
    assert 0 < ends[0] < 2**-32
    assert 1 - 2**-32 < ends[1] < 1
