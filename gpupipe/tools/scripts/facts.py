"""What a training script has to know of the user's data: found by opening it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Boxes, Field, Frames, Image, Mask, Schema, Text
from gpupipe.batch.fields import MISSING
from gpupipe.decode.masks import mask_pixels
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.host.limits import Limits
from gpupipe.order import split
from gpupipe.sources import Source, open_source

__all__ = ["TASKS", "Facts", "find", "task_of"]

TASKS = ("classification", "segmentation")
TRAIN, VAL, TEST = ("train", "training"), ("val", "valid", "validation"), ("test", "testing")
IMAGES, MASKS = ("images", "image", "img", "imgs", "JPEGImages"), ("masks", "mask", "annotations", "SegmentationClass")
LOOKED_AT = 200  # masks, whose highest number says how many classes there are
FEW = 1000  # samples of which a fifth is kept for the evaluation, else a tenth
ENOUGH = 4  # batches in an epoch, at least


@dataclass(frozen=True)
class Facts:
    """What a script says of the data.

    data, val: as `open_source` takes them; val None: `parts`, shares of the data, are cut from it, of each class if
               `stratify`.
    fields:    None: those that the data has by itself. schema: as they were opened.
    samples:   of `data`. classes: how many there are, names: theirs, where these are known.
    batch_size: one of which an epoch has several.
    """

    task: str
    data: Any
    val: Any
    parts: tuple[float, float]
    stratify: bool
    fields: Mapping[str, Field] | None
    schema: Schema
    samples: int
    classes: int
    names: tuple[str, ...]
    batch_size: int


def task_of(asked: str | None, fields: Mapping[str, Field] | None) -> str:
    """The task that is asked for, or that the fields are of. Raises ConfigError for one that has no script."""
    kinds = [*map(type, (fields or {}).values())]
    told = {Boxes: "detection", Mask: "segmentation", Frames: "video", Text: "image_text"}
    found = asked or next((task for kind, task in told.items() if kind in kinds), TASKS[0])
    if found not in TASKS:
        raise ConfigError(
            f"task {found!r}: there is no script for it yet, but for {' and '.join(TASKS)}; write your own around "
            "gpupipe.Loader, or pass other fields"
        )
    return found


def find(data: Any, val: str | None, fields: Mapping[str, Field] | None, task: str, classes: int | None) -> Facts:
    """Open the data, and what lies beside it for the evaluation. classes: how many, where the data does not say it.

    Raises ConfigError and DataError for data that a script of the task can't use, ConfigError for fewer classes than it
    has.
    """
    beside = _beside(data) if val is None else (data, val)
    data, val = (data, None) if beside is None else beside
    fields = _in_folders(data) if task == "segmentation" and fields is None else fields
    source = open_source(data, fields=fields)
    labelled = _check(task, source)
    names, count = _named(source) if labelled else ((), _in_masks(source))
    if classes is not None and classes < count:
        raise ConfigError(
            f"classes={classes} is fewer than there are in {source!r}, which are numbered up to {count - 1}; leave it "
            f"out, or pass {count} or more"
        )
    parts, stratify, samples = (1.0, 0.0), False, len(source)
    if val is None:
        parts, stratify, samples = _cut(source, labelled)
    else:
        _compare(names, open_source(val, fields=fields), val, labelled)
    fitting = 2 ** int(np.log2(max(2, samples // ENOUGH)))
    return Facts(
        *(task, data, val, parts, stratify, fields, source.fields, len(source)),
        *(classes or (count if labelled else max(2, count)), names, min(64, fitting)),
    )


def _beside(data: Any) -> tuple[str, str] | None:
    """The parts for training and evaluation: of a folder that has both, or `data` itself and what is beside it. Raises
    ConfigError for a folder that has only the first of them."""
    if not isinstance(data, str) or "://" in data:
        return None
    path = Path(data).expanduser()
    for train in TRAIN:
        if path.is_dir() and (path / train).is_dir():
            found = [str(Path(data, other)) for other in VAL if (path / other).is_dir()]
            if not found and _is_part(path, train):
                raise _without_val(data, path, train)
            return (str(Path(data, train)), found[0]) if found else None
        if path.stem == train:
            found = [str(Path(data).with_stem(other)) for other in VAL if path.with_stem(other).exists()]
            return (data, found[0]) if found else None
    return None


def _is_part(path: Path, train: str) -> bool:
    """Whether this folder in it is a part of the data, rather than one of the classes, which may be called so."""
    return bool(_folders(path / train)) or set(_folders(path)) <= {train, *TEST}


def _folders(path: Path) -> list[str]:
    return sorted(one.name for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))


def _without_val(data: str, path: Path, train: str) -> ConfigError:
    test = next((f", or {Path(data, train)} --val {Path(data, one)}" for one in TEST if (path / one).is_dir()), "")
    return ConfigError(
        f"{data} has {' and '.join(_folders(path))}, and no {' or '.join(VAL)}: pass {Path(data, train)}, of which a "
        f"part is kept for the evaluation{test}"
    )


def _in_folders(data: Any) -> Mapping[str, Field] | None:
    """The fields of a folder with a folder of images and one of masks; None: of other data."""
    if not isinstance(data, str) or not os.path.isdir(os.path.expanduser(data)):
        return None
    below = [one.name for one in Path(data).expanduser().iterdir() if one.is_dir()]
    images, masks = (next((name for name in known if name in below), None) for known in (IMAGES, MASKS))
    if images is None or masks is None:
        return None
    return {"image": Image(folder=images), "mask": Mask(folder=masks, suffix=".png")}


def _check(task: str, source: Source) -> bool:
    """Whether the samples have labels, rather than masks. Raises ConfigError where they have neither."""
    schema = source.fields
    if task == "classification":
        if not schema.is_pair:
            raise ConfigError(
                f"classification takes image and label, and the fields are {', '.join(schema)}; pass "
                "--field image=Image:... --field label=Scalar:..., in this order"
            )
        return True
    if len(schema.images) != 1 or len(schema.of_kind(Mask)) != 1:
        raise ConfigError(
            f"segmentation takes an image and a mask, and the fields are {', '.join(schema)}; pass them, as --field "
            "image=Image:jpg --field mask=Mask:png for shards, and for folders --fields FILE.py:NAME with "
            "{'image': gpupipe.Image(folder='images'), 'mask': gpupipe.Mask(folder='masks', suffix='.png')}"
        )
    return False


def _named(source: Source) -> tuple[tuple[str, ...], int]:
    """The classes' names, where there are, and their number."""
    names = tuple(source.classes or ())
    labels = source.targets
    if labels.min(initial=0) < 0:
        raise DataError(
            f"labels of {source!r} are as low as {labels.min()}, and classes count from 0; number them anew, or take a "
            "field that has them so"
        )
    return names, max(len(names), int(labels.max(initial=-1)) + 1)


def _in_masks(source: Source) -> int:
    """One more than the highest number in some of the masks, but for what is ignored."""
    (name,) = source.fields.of_kind(Mask)
    field = source.fields[name]
    assert isinstance(field, Mask)
    highest = 0
    for index in np.linspace(0, len(source) - 1, min(LOOKED_AT, len(source))).astype(int).tolist():
        levels = np.unique(_read(source, index, name, field))
        highest = max([highest, *levels[levels != field.ignore].tolist()])
    return int(highest) + 1


def _read(source: Source, index: int, name: str, field: Mask) -> NDArray[Any]:
    """One mask's pixels. Raises SampleError."""
    value = source[index][name]
    if value is MISSING:
        raise SampleError(index, source.location(index), f"has no {name!r}", "pass missing='skip' or 'default'")
    if np.ndim(value) == 0:  # what stands in for one that is missing
        return np.array([value])
    try:
        return mask_pixels(np.asarray(value), field, Limits())
    except ValueError as error:
        raise SampleError(index, source.location(index), f"{name!r}: {error}") from error


def _cut(source: Source, labelled: bool) -> tuple[tuple[float, float], bool, int]:
    """The shares for training and evaluation, whether of each class, and the samples of the first."""
    parts = (0.8, 0.2) if len(source) < FEW else (0.9, 0.1)
    for stratify in (True, False)[not labelled :]:  # of classes with few samples none would be left for the second
        train, val = split(source, parts, stratify=stratify)
        if len(train) and len(val):
            return parts, stratify, len(train)
    raise ConfigError(
        f"{source!r} has too few samples to keep some for the evaluation; pass --val DATA with others, or add some"
    )


def _compare(names: Sequence[str], val: Source, path: Any, labelled: bool) -> None:
    others = tuple(val.classes or ()) if labelled else ()
    if others != tuple(names):
        only = [name for name in names if name not in others] + [name for name in others if name not in names]
        raise ConfigError(
            f"val: {path} has other classes than the data for training, or in another order, so numbers mean other "
            f"classes: {', '.join(only[:5]) or 'the order differs'}; give both the same classes"
        )
