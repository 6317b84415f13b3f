"""Random generators that code of the user's draws from: torch's, NumPy's and Python's, seeded and put back."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

__all__ = ["global_generators", "kept", "own_generators", "peek", "seed_all"]


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
    before = [_state(generator) for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            _put_back(generator, state)


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state()


def _put_back(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)
