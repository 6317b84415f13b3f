"""Odd values from a user's dataset: what is good comes out as it is given, what is bad is replaced, by either engine.

An input is the seed of the items that a dataset has.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from images import picture

import gpupipe
from fuzz.harness import Finding, Target, unfit
from fuzz.members import PARTS

SIDE = 8
COUNT = 6  # items of a dataset
SEED = 8  # bytes
FIELDS = {
    "image": gpupipe.Image(),
    "label": gpupipe.Scalar(),
    "score": gpupipe.Scalar(dtype="float64"),
    "boxes": gpupipe.Boxes(labels="classes"),
    "classes": gpupipe.Array(),
    "points": gpupipe.Points(outside="keep"),
    "values": gpupipe.Array(collate="list"),
    "mask": gpupipe.Mask(),
    "text": gpupipe.Text(),
    "other": gpupipe.Text(),
    "bytes": gpupipe.Bytes(),
    "key": gpupipe.Key(),
    "index": gpupipe.Index(),
}
EXACT = ("label", "score", "values", "text", "other", "bytes", "key", "index")
"""Fields that come out as they are given."""
DTYPES = (
    "u1",
    "i1",
    "<f4",
    "<f8",
    "<i8",
    "<u8",
    ">i4",
    ">u2",
    "f2",
    "?",
    "c8",
    "S3",
    "U3",
    "O",
    "M8[s]",
    "m8[s]",
    "V4",
)
TORCHS = (
    torch.uint8,
    torch.int8,
    torch.float32,
    torch.int64,
    torch.bool,
    torch.bfloat16,
    torch.complex64,
    torch.uint16,
)
MODES = ("L", "RGB", "RGBA", "P", "1", "I", "F", "CMYK", "LA", "I;16", "PA", "La", "RGBa", "YCbCr", "LAB", "HSV")


class Items:
    """A user's dataset."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        item = self.items[index]
        if isinstance(item, Exception):
            raise item
        return item


def good(index: int) -> dict[str, Any]:
    return {
        "image": picture(SIDE, SIDE, index),
        "label": index,
        "score": index / 2,
        "boxes": np.array([[0, 0, 5, 5.5]] * (index % 3)).reshape(-1, 4),
        "classes": list(range(index % 3)),
        "points": [[index, 2]],
        "values": np.arange(index),
        "mask": np.full((SIDE, SIDE), index, np.uint8),
        "text": f"text {index}",
        "other": f"other {index}",
        "bytes": b"%d" % index,
    }


def odd(draw: random.Random, depth: int = 0) -> Any:
    """A value of any kind that a dataset may give, or should not."""
    shape = tuple(draw.choice((0, 1, 2, 3, 4, SIDE, SIDE)) for _ in range(draw.choice((0, 1, 1, 2, 2, 3, 3, 4))))
    match draw.randrange(12):
        case 0 | 1:
            return np.zeros(shape, draw.choice(DTYPES))
        case 2:
            return torch.zeros(shape, dtype=draw.choice(TORCHS))
        case 3:
            size = draw.choice(((SIDE, SIDE), (SIDE, 4), (0, 3), (1, 1)))
            return PIL.Image.new(draw.choice(MODES), size)
        case 4 | 5:
            return draw.choice(PARTS)
        case 6:
            values = (b"", b"abc", bytearray(b"xy"), "abc", range(3), {1, 2}, (1, 2), iter([1]), int, ValueError("x"))
            return draw.choice((*values, object(), np.float32(2), np.bool_(True), np.str_("x"), 1j, memoryview(b"ab")))
        case 7:
            return draw.choice((torch.zeros(3, requires_grad=True) * 1, torch.zeros(2, 2, device="meta")))
        case 8:
            return torch.zeros(shape).to_sparse()
        case 9:
            return np.ma.masked_array([1, 2], [0, 1])
        case 10 if depth < 3:
            return [odd(draw, depth + 1) for _ in range(draw.randrange(4))]
        case _:
            return picture(SIDE, SIDE, 9)[::-1, :, ::-1]


def items_of(draw: random.Random) -> list[Any]:
    items: list[Any] = [good(index) for index in range(COUNT)]
    for index in draw.sample(range(COUNT), draw.randint(1, COUNT - 1)):
        name = draw.choice([*good(0), "item"])
        if name != "item":
            items[index][name] = odd(draw)
        else:
            given = items[index]
            items[index] = draw.choice((OSError("lost"), odd(draw), tuple(given.values()), list(given.values())))
    return items


def seeds(scratch: Path) -> Sequence[bytes]:
    return [bytes([number]) * SEED for number in range(4)]


def check_of(scratch: Path) -> Callable[[bytes], Hashable]:
    recipe = gpupipe.imagenet_eval(SIDE, resize=SIDE, dtype="uint8")

    def check(data: bytes) -> Hashable:
        draw = random.Random(data)
        items, size = items_of(draw), draw.choice((1, 1, 2, 3, COUNT))
        engine = "dali" if draw.randrange(16) == 0 else "torch"
        settings = {"engine": engine, "device": "cpu", "num_workers": 0, "on_error": "skip", "max_bad": COUNT}
        with gpupipe.Loader(Items(items), recipe, size, fields=FIELDS, **settings) as loader:
            for batch in loader:
                indices = loader.last_indices.tolist()
                for row, index in enumerate(indices):
                    compare({name: column[row] for name, column in batch.items()}, items[index], index)
            for error in loader.bad_samples:
                if wrong := unfit(str(error), "Items["):
                    raise Finding(wrong)
            return len(loader.bad_samples)

    return check


def compare(made: Mapping[str, Any], item: Any, index: int) -> None:
    """Of a sample that has come, what comes out as it is given, and the pixels of an image that is not odd."""
    usual = good(index)
    given = item if isinstance(item, Mapping) else dict(zip(usual, item, strict=True))
    given = {**given, "key": str(index), "index": index}
    for name in EXACT:
        if not equal(made[name], given[name]):
            raise Finding(f"{name!r} of sample {index} is {made[name]!r:.100}, and {given[name]!r:.100} was given")
    is_usual = np.array_equal(np.asarray(given["image"]), usual["image"])
    if is_usual and not np.array_equal(made["image"].permute(1, 2, 0).numpy(), usual["image"]):
        raise Finding(f"other pixels of sample {index}")


def equal(made: Any, given: Any) -> bool:
    if isinstance(made, bytes) and not isinstance(given, str | bytes):
        given = np.asarray(given).tobytes()
    if isinstance(made, str | bytes) or isinstance(given, str | bytes):
        return bool(made == given)
    own, there = (one.detach().numpy() if isinstance(one, torch.Tensor) else np.asarray(one) for one in (made, given))
    return own.shape == there.shape and np.array_equal(own, there.astype(own.dtype), equal_nan=own.dtype.kind in "fc")


TARGETS = [Target("items", seeds, check_of, lambda draw, data, others: draw.randbytes(SEED))]
