import ctypes

import numpy as np
import pytest

from gpupipe.kernels import native
from gpupipe.philox import philox4x32, split64, uniform

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


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_published_vectors(counter, key, expected):
    assert tuple(int(word) for word in philox4x32(counter, key)) == expected


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


@pytest.mark.skipif(native.library() is None, reason="without the C++ kernels")
@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_published_vectors_in_the_kernels(counter, key, expected):
    words = (ctypes.c_uint32 * 4)()
    native.library().gp_philox((ctypes.c_uint32 * 4)(*counter), (ctypes.c_uint32 * 2)(*key), words)
    assert tuple(words) == expected
