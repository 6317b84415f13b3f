"""What stands in a shard's members beside images, through a loader to the batch."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from tars import jpeg, write_tar
from torchvision.transforms.v2 import functional as v2
from torchvision.tv_tensors import BoundingBoxes

import gpupipe
from fuzz import mutators
from fuzz.harness import Finding, Target

SIDE = 8  # of the images, and of their crops: boxes and points stay where they are
FIELDS = {
    "image": gpupipe.Image("jpg"),
    "label": gpupipe.Scalar("cls"),
    "score": gpupipe.Scalar("json:score"),
    "boxes": gpupipe.Boxes("json:objects.boxes", labels="classes"),
    "classes": gpupipe.Array("json:objects.classes"),
    "points": gpupipe.Points("json:points.0", outside="keep"),
    "values": gpupipe.Array("npy", collate="list"),
    "mask": gpupipe.Mask("png"),
    "text": gpupipe.Text("txt"),
    "bytes": gpupipe.Bytes("bin"),
}
ENDINGS = ("cls", "json", "npy", "png", "txt", "bin")
"""Of the members that are mutated: an input begins with the place of one of these, and the rest is its content."""
HOSTILE = 1  # which of the samples has it


def good(number: int) -> dict[str, bytes]:
    """A sample, by the extensions of its members."""
    array, mask = io.BytesIO(), io.BytesIO()
    np.save(array, np.arange(4, dtype="<f4" if number else ">i2"))
    PIL.Image.fromarray(np.arange(SIDE * SIDE, dtype=np.uint8).reshape(SIDE, SIDE) + number).save(mask, "PNG")
    objects = {"boxes": [[1, 2, 3.5, 4], [0, 0, 50, 5]][:number], "classes": [7, 9][:number]}
    document = {"objects": objects, "points": [[[1, 2.5], [3, 4]]], "score": number / 2}
    return {
        "jpg": jpeg(number, SIDE, SIDE),
        "cls": b"%d" % number,
        "json": json.dumps(document).encode(),
        "npy": array.getvalue(),
        "png": mask.getvalue(),
        "txt": "a ü\n".encode(),
        "bin": b"\0\xff",
    }


def seeds(scratch: Path) -> Sequence[bytes]:
    contents = [(ending, good(number)[ending]) for number in range(3) for ending in ENDINGS]
    contents += [("cls", b"-1.5e3\n"), ("cls", good(1)["npy"]), ("npy", b"[[1, 2], [3, 4]]"), ("npy", b"true")]
    return [bytes([ENDINGS.index(ending)]) + content for ending, content in contents]


def mutated(draw: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """The same member with another content, of a document mostly one that can be parsed; of another's, at times."""
    place = data[:1] if data and draw.random() < 0.95 else bytes([draw.randrange(len(ENDINGS))])
    content = data[1:]
    if draw.random() < 0.7:
        with suppress(ValueError, RecursionError):
            return place + json.dumps(replaced(draw, json.loads(content.decode()))).encode()
    return place + PLAIN(draw, content, others)


def replaced(draw: random.Random, value: Any) -> Any:
    """A document with one of its parts replaced, left out or said twice."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not keys or draw.random() < 0.2:
        return draw.choice((*PARTS, draw.random() * SIDE, draw.randrange(-SIDE, 2 * SIDE), [value], [value, value]))
    key = draw.choice(keys)
    changed = value.copy()
    if draw.random() < 0.1:
        del changed[key]
    else:
        changed[key] = replaced(draw, value[key])
    return changed


def check_of(scratch: Path) -> Callable[[bytes], Hashable]:
    path = scratch / "hostile.tar"
    samples = [good(number) for number in range(3)]
    recipe = gpupipe.imagenet_eval(SIDE, resize=SIDE)

    def check(data: bytes) -> Hashable:
        ending, content = ENDINGS[(data[0] if data else 0) % len(ENDINGS)], data[1:]
        given = [dict(sample) for sample in samples]
        given[HOSTILE][ending] = content
        named = [(f"{number}.{name}", part) for number, sample in enumerate(given) for name, part in sample.items()]
        write_tar(path, named)
        with gpupipe.Loader(path, recipe, len(given), fields=FIELDS, engine="torch", num_workers=0) as loader:
            (batch,) = loader
        truth = READ[ending](content)
        compare(batch, {**usual, **truth})
        return ending, str(sorted((name, np.shape(value)) for name, value in truth.items()))[:100]

    usual = {name: value for ending in ENDINGS for name, value in READ[ending](samples[HOSTILE][ending]).items()}
    return check


def compare(batch: Mapping[str, Any], truth: Mapping[str, Any]) -> None:
    """Each field of the hostile sample with what its member says."""
    for name, expected in truth.items():
        made = batch[name][HOSTILE]
        if isinstance(expected, str | bytes):
            same = made == expected
        else:
            made, expected = np.asarray(made), np.asarray(expected)
            with np.errstate(over="ignore"):
                cast = expected.astype(made.dtype)
            same = made.shape == expected.shape and np.array_equal(made, cast, equal_nan=made.dtype.kind in "fc")
            same &= name in ("boxes", "points") or exact(expected, cast)
        if not same:
            raise Finding(f"another {name} than its member's: {made!r:.200}, {expected!r:.200}")


def exact(values: np.ndarray, cast: np.ndarray) -> bool:
    """Whether a cast has kept the values: a batch's dtype is that of all its rows."""
    return cast.dtype.kind in "fc" or bool((cast == values).all())


# What a member says, by other means than gpupipe's; a member that is refused here must not be accepted.


def number_of(content: bytes) -> dict[str, Any]:
    if content.startswith(b"\x93NUMPY"):
        return {"label": loaded(content)}
    text = content.decode()
    try:
        return {"label": int(text)}
    except ValueError:
        return {"label": float(text)}


def document_of(content: bytes) -> dict[str, Any]:
    document = json.loads(content.decode())
    boxes = torch.tensor(document["objects"]["boxes"], dtype=torch.float64).reshape(-1, 4).float()
    boxes = BoundingBoxes(boxes, format="XYXY", canvas_size=(SIDE, SIDE))  # type: ignore[call-arg]
    boxes = v2.clamp_bounding_boxes(boxes, clamping_mode="hard")
    left = ((boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(1) >= FIELDS["boxes"].min_area).numpy()  # type: ignore[attr-defined]
    return {
        "score": document["score"],
        "boxes": boxes.numpy()[left],
        "classes": np.asarray(document["objects"]["classes"])[left],
        "points": np.asarray(document["points"][0], np.float64).reshape(-1, 2),
    }


def array_of(content: bytes) -> dict[str, Any]:
    if content.startswith(b"\x93NUMPY"):
        return {"values": loaded(content)}
    return {"values": np.asarray(json.loads(content.decode()))}


def loaded(content: bytes) -> np.ndarray:
    array: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
    return array


def pixels_of(content: bytes) -> dict[str, Any]:
    with PIL.Image.open(io.BytesIO(content)) as image:
        return {"mask": np.asarray(image)}


READ: dict[str, Callable[[bytes], dict[str, Any]]] = {
    "cls": number_of,
    "json": document_of,
    "npy": array_of,
    "png": pixels_of,
    "txt": lambda content: {"text": content.decode()},
    "bin": lambda content: {"bytes": content},
}

WORDS = (
    *(b"1e999", b"-Infinity", b"NaN", b"null", b"true", b"1.0", b"9" * 25, b"9" * 5000, b"[" * 3000, b"[]", b"{}"),
    *(b'"x"', b'"\\ud800"', b"[1, 2, 3, 4]", b"[[0, 0, 5, 5]]", b", [1, 2]", b"\xef\xbb\xbf", b"\0", b"\x1b[2J"),
    *(b"'<M8[ns]'", b"'<f2'", b"'|b1'", b"'<c8'", b"'>u8'", b"'<U4'", b"'|O'", b"(0, 7)", b"()", b"1_0", b" "),
)
PLAIN = mutators.plain(*WORDS)
PARTS = (
    *(None, True, "x", "\ud800", "1", 0, -1, 0.5, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400),
    *(1e-45, 3.5e38, 1e308, float("inf"), -float("inf"), float("nan"), -0.0),
    *([], {}, [[]], [[[]]], [1], [1, 2], [1, 2, 3, 4], [[1, 2]], [[0, 0, 5, 5]], [1, [2]], [True, 2.5], [2**63, 1.5]),
)

TARGETS = [Target("members", seeds, check_of, mutated, named="hostile.tar")]
