"""What users pass as data that is none here, and what to write instead."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from gpupipe.errors import ConfigError
from gpupipe.sources.folder import EXTENSIONS, OTHERS
from gpupipe.sources.remote.objects import shown

__all__ = ["refuse", "refuse_list", "refuse_path", "refuse_urls"]

OWN = "a dataset of your own: an object with __len__ whose __getitem__(i) gives (encoded bytes, label)"

# By how a path ends.
STORES = (".zip", ".lmdb", ".mdb", ".h5", ".hdf5", ".npy", ".npz")
FILES: dict[tuple[str, ...], str] = {
    (".7z", ".rar"): "an archive without fast access to its members: unpack it and pass the folder",
    (".parquet",): "Parquet, which is not read together with other kinds of data: pass the files of one kind",
    (".arrow", ".feather", ".orc"): f"a table of a kind that gpupipe does not read: write it as Parquet, or pass {OWN} "
    "of row i",
    (".csv", ".tsv", ".jsonl", ".ndjson"): "a table in a list: pass it by itself",
    STORES: "a store in a list: pass it by itself",
    (".json", ".txt"): "a list in a text file of unknown form: write it as .csv or .jsonl, or say what is in it: "
    "gpupipe.Manifest(path, delimiter=' ', columns=['image', 'label']) (of COCO's .json docs/guide/recipes.md makes a "
    f".jsonl); or pass {OWN}",
    (
        ".db",
        ".sqlite",
        ".sqlite3",
    ): "a database: pass gpupipe.Query('sqlite:///FILE', 'SELECT image, label FROM ... ORDER BY id')",
    (".zarr", ".pt", ".pth", ".pkl"): f"arrays, which gpupipe does not open: pass {OWN}, or write them to .npy files",
    (".beton", ".ffcv", ".tfrecord", ".tfrecords", ".rec", ".mds"): f"a kind of store that gpupipe "
    f"does not read: pass {OWN}, or write .tar shards from it",
    EXTENSIONS
    + OTHERS: f"an image, without a label: pass a folder that holds one folder of images per class, or {OWN}",
    (".mp4", ".avi", ".mov", ".mkv", ".webm"): "a video: pass the folder of its class folder, "
    "and gpupipe.Frames() among the fields; see docs/guide/video.md",
}

FOLDER = (
    "a folder in a list, and several are not read as one. Pass one without the list; for more of images, make a folder "
    "whose class folders hold links to those of all (all/dog/a -> a/dog, all/dog/b -> b/dog); of .tar shards, pass "
    "their names, as ['a/*.tar', 'b/*.tar']"
)

ARRAYS = (
    "whose rows have no label: pass fields={'image': gpupipe.Image()} for uint8 images, or images and labels together, "
    "as torch.utils.data.TensorDataset(images, labels)"
)

INDICES = (
    "which lists samples, as gpupipe.split does: pass the dataset itself as data, and order=gpupipe.Subset(indices, "
    "shuffle=True) for these of it"
)

IMAGE_FOLDER = "torchvision.datasets.folder.DatasetFolder"


def refuse_path(path: str) -> None:
    """Raise ConfigError for what can be neither a shard nor a folder. Commands are refused with patterns."""
    if not path:
        raise ConfigError("data is an empty path, as of a variable that is not set; pass the folder or the shards")
    for endings, what in FILES.items():
        if path.lower().partition("?")[0].endswith(endings) and not os.path.isdir(os.path.expanduser(path)):
            raise ConfigError(f"data: '{shown(path)}' is {what}")


def refuse_urls(urls: Sequence[str]) -> None:
    """Raise ConfigError for the first of the URLs that can be neither shards nor a folder."""
    for url in urls:
        if url.lower().partition("?")[0].endswith(STORES):
            raise ConfigError(
                f"data: '{shown(url)}' is a store, and those are read on a disk only: copy it to one, or write .tar "
                "shards of it: gpupipe pack"
            )
        refuse_path(url)


def refuse_list(paths: Sequence[str]) -> None:
    """Raise ConfigError for the first of the paths that can't be a shard."""
    for path in paths:
        refuse_path(path)
        if os.path.isdir(os.path.expanduser(path)):
            raise ConfigError(f"data: {path!r} is {FOLDER}")


def refuse(data: Any, usual: bool) -> None:
    """Raise ConfigError for an object that is known and does not give samples by their number.

    usual: whether image and label are wanted.
    """
    for base in type(data).__mro__:
        explain = OBJECTS.get(_name(base))
        what = explain(data) if explain is not None else None
        if what is not None:
            raise ConfigError(f"data is {_article(type(data).__name__)}, {what}")
    if usual and _name(type(data)) in ("numpy.ndarray", "torch.Tensor"):
        raise ConfigError(f"data is {_article(type(data).__name__)}, {ARRAYS}")
    if isinstance(data, (list, tuple)):
        _refuse_samples(data)


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _refuse_samples(data: list[Any] | tuple[Any, ...]) -> None:
    first = data[0] if data else None
    if isinstance(first, (list, tuple)) and first and isinstance(first[0], (str, os.PathLike)):
        raise ConfigError(
            f"data is a list of {len(data)} samples, the first {first!r}, a path where the bytes belong: pass {OWN}; "
            "there read the file, as (Path(path).read_bytes(), label)"
        )


def _image_folder(data: Any) -> str | None:
    """torchvision's, unless it was made to give bytes: by another loader, or another __getitem__."""
    own = (getattr(data, "loader", None), getattr(type(data), "__getitem__", None))
    if any(not str(getattr(part, "__module__", "")).startswith("torchvision.") for part in own):
        return None
    return (
        f"whose images come decoded: pass its folder, Loader({_root(data)!r}, ...); its transform becomes the recipe, "
        "as gpupipe.imagenet_train(224)"
    )


def _root(data: Any) -> str:
    # torchvision's ImageNet has the split below its root.
    return str(getattr(data, "split_folder", data.root))


def _part_of_image_folder(data: Any) -> str | None:
    inner = getattr(data, "dataset", None)
    if inner is None or not any(_name(base) == IMAGE_FOLDER for base in type(inner).__mro__):
        return None
    what = _image_folder(inner)
    if what is None:
        return None
    return (
        f"of an {type(inner).__name__}, whose images come decoded: pass the same part of its folder, "
        f"torch.utils.data.Subset(gpupipe.open_source({_root(inner)!r}), data.indices)"
    )


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


# By the full name of the object's class, or of one that it inherits from. What returns None takes the object after all.
OBJECTS: dict[str, Callable[[Any], str | None]] = {
    IMAGE_FOLDER: _image_folder,
    "torch.utils.data.dataset.Subset": _part_of_image_folder,
    "torch.utils.data.dataloader.DataLoader": lambda data: (
        "whose place a Loader takes: pass what its dataset reads (a folder, .tar shards), or " + OWN
    ),
    "numpy.ndarray": lambda data: INDICES if data.ndim == 1 and data.dtype.kind in "iu" else None,
    "builtins.dict": lambda data: (
        None if 0 in data else f"of {', '.join(map(repr, [*data][:4]))}: pass one of its parts"
    ),
}
