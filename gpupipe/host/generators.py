"""Random generators that code of the user's draws from: torch's, NumPy's and Python's, seeded and put back."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np

__all__ = ["drawing", "global_generators", "kept", "own_generators", "peek", "seed_all", "states"]


def global_generators() -> list[Any]:
    """The generators behind `torch.rand` (on the CPU), `numpy.random.rand` and `random.random`.

    CUDA's are left alone: `torch.manual_seed` would seed them, too.
    """
    import torch

    return [torch.default_generator, np.random.mtrand._rand, random._inst]


def own_generators(holder: object) -> list[Any]:
    """The generators among the attributes of an object."""
    import torch

    kinds = (torch.Generator, np.random.RandomState, np.random.Generator, random.Random)
    found = [value for value in getattr(holder, "__dict__", {}).values() if isinstance(value, kinds)]
    return [one for one in found if not isinstance(one, random.SystemRandom)]  # it has no state


def seed_all(generators: Iterable[Any], words: Sequence[int]) -> None:
    """Seed each generator from four random words of 32 bits; torch's, NumPy's and Python's get other numbers each.

    The three global ones take 10 us (`torch.manual_seed`, which asks for every kind of device, 120 us by itself).
    """
    first, second, third, fourth = words
    for generator in generators:
        if isinstance(generator, random.Random):
            generator.seed(second | fourth << 32)
        elif isinstance(generator, np.random.RandomState):
            generator.seed(third)  # an array of words would take 8 us instead of 2
        elif isinstance(generator, np.random.Generator):
            bits = generator.bit_generator
            bits.state = type(bits)(list(words)).state
        else:
            generator.manual_seed((second << 31) ^ first)


def peek() -> list[float]:
    """What each of the global generators gives next; takes it from them."""
    import torch

    torchs, numpys, pythons = global_generators()
    return [float(torch.rand((), device="cpu", generator=torchs)), numpys.random_sample(), pythons.random()]


@contextmanager
def kept(generators: Sequence[Any]) -> Iterator[None]:
    """Puts the generators' states back at the end: 80 us for the global ones, most of it NumPy's."""
    access = [_access(generator) for generator in generators]
    before = [get() for get, _ in access]
    try:
        yield
    finally:
        for (_, put_back), state in zip(access, before, strict=True):
            put_back(state)


def states(generators: Sequence[Any]) -> list[bytes]:
    """How the generators stand, to be compared with how they stood."""
    return [_as_bytes(get()) for get, _ in map(_access, generators)]


def _as_bytes(state: Any) -> bytes:
    """A tensor's pickle has its address in it."""
    return pickle.dumps(state.numpy() if hasattr(state, "numpy") else state)


@contextmanager
def drawing(words: Sequence[int], device: Any = None) -> Iterator[None]:
    """What is drawn meanwhile from the global generators, on the GPU `device` too, follows from four random words.

    They are put back but in a worker process, which has them for itself. Not for a thread beside the consumer's.
    """
    import torch.utils.data

    generators = global_generators()
    if device is not None and device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    is_worker = torch.utils.data.get_worker_info() is not None
    with nullcontext() if is_worker else kept(generators):
        seed_all(generators, words)
        yield


def _access(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """What gives its state, and what puts it back."""
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        return lambda: bits.state, partial(setattr, bits, "state")
    return generator.get_state, generator.set_state
