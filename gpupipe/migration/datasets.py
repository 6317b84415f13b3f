"""Datasets that are image files with a label each: the very paths and labels that they have listed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray
from PIL import ImageFile

from gpupipe.errors import TranslationError
from gpupipe.host.generators import global_generators, kept
from gpupipe.recipe.translation.untouched import is_foreign, replaced_in
from gpupipe.sources import DatasetSource, Source, SubsetSource
from gpupipe.sources.listed import MAYBE_DEEP, open_listed
from gpupipe.sources.raised import as_raised, form_of

__all__ = ["Files", "check_depth", "files_of"]

Transform = Callable[[Any], Any]
Listed = tuple[Sequence[Any], Sequence[Any]]

TRIED = 1000
AS_IT_IS = "it runs as it is written"

# Where the classes of torchvision.datasets keep their files and labels: one list of pairs, or two lists. All of them
# open an image as RGB, by their `loader` where they have one, and return it with its label.
LISTS: dict[str, tuple[str, ...]] = {
    "CLEVRClassification": ("_image_files", "_labels"),
    "DTD": ("_image_files", "_labels"),
    "DatasetFolder": ("samples",),  # and ImageFolder, ImageNet, Country211, EuroSAT
    "FGVCAircraft": ("_image_files", "_labels"),
    "Flowers102": ("_image_files", "_labels"),
    "Food101": ("_image_files", "_labels"),
    "GTSRB": ("_samples",),
    "Imagenette": ("_samples",),
    "LFWPeople": ("data", "targets"),
    "Places365": ("imgs",),
    "RenderedSST2": ("_samples",),
    "SUN397": ("_image_files", "_labels"),
    "StanfordCars": ("_samples",),
}
PETS = {"category": "_labels", "binary-category": "_bin_labels"}
OWN_MODE = ("CelebA", "Caltech101", "Caltech256", "Omniglot")
RGB_LOADERS = ("default_loader", "pil_loader")


@dataclass(frozen=True)
class Files:
    """paths, labels: of all files that the dataset has listed. chosen: the samples' places among them, in their order.

    transforms: of the images; several where the dataset is made of parts. target_transform: of the labels.
    skips: whether the dataset itself goes on to another sample where one can't be read.
    """

    paths: Sequence[Any]
    labels: Sequence[int]
    transforms: tuple[Any, ...]
    target_transform: Transform | None
    chosen: NDArray[np.int64]
    skips: bool = False

    def source(self, dataset: Any) -> Source:
        """The source for them; `dataset` names the classes."""
        source: Source = open_listed(self.paths, self.labels)
        source.classes, source.class_to_idx = (getattr(dataset, name, None) for name in ("classes", "class_to_idx"))
        if len(self.chosen) != len(self.paths) or (self.chosen != np.arange(len(self.paths))).any():
            source = SubsetSource(source, self.chosen)
        return source if self.target_transform is None else RelabelledSource(source, self.target_transform)


@dataclass(frozen=True)
class OfKind:
    """A label as the dataset has it, of one of NumPy's types, and what its target_transform makes of that."""

    kind: Callable[[int], Any]
    transform: Transform | None

    def __call__(self, label: int) -> Any:
        own = self.kind(label)
        return own if self.transform is None else self.transform(own)


class RelabelledSource(DatasetSource):
    """Another source's samples, of which a function makes the labels, each time that one is fetched."""

    def __init__(self, source: Source, transform: Transform) -> None:
        super().__init__(source)
        self.fingerprint = source.fingerprint
        self._transform = transform

    def location(self, index: int) -> str:
        """Where it lies in the source."""
        return str(self.dataset.location(index))

    def key(self, index: int) -> str:
        """Its name in the source."""
        return str(self.dataset.key(index))

    def item(self, index: int) -> tuple[Any, Any]:
        """The encoded image, and what the function makes of the label. Raises SampleError, which is of its type."""
        image, label = self.dataset[index]
        try:
            return image, self._transform(label)
        except Exception as error:
            reason = f"target_transform raised {type(error).__name__}: {error}"
            raise as_raised(error, index, self.location(index), reason) from error


def files_of(dataset: Any) -> Files:
    """The files of a dataset, also of Subset and ConcatDataset. Raises TranslationError for what is none of these."""
    files = _files_of(dataset)
    _try_labels(dataset, files)
    return files


def _files_of(dataset: Any) -> Files:
    kind = type(dataset)
    if kind.__module__ == "datasets.arrow_dataset":
        reason = "what a Hugging Face dataset's transform does can't be told"
        raise _refused(dataset, reason, "pass recipe=, which stands for it and takes the encoded images")
    _check_class(dataset, kind)
    if _makes_batches(dataset):
        raise _refused(dataset, "it has a __getitems__, which makes its batches")
    if kind is torch.utils.data.Subset:
        return _chosen(dataset, _files_of(dataset.dataset))
    if kind is torch.utils.data.ConcatDataset:
        return _joined(dataset, [_files_of(part) for part in dataset.datasets])
    base = next((one for one in kind.__mro__ if "__getitem__" in vars(one)), object)
    if not _library(base):
        raise _refused(dataset, "its __getitem__ is no dataset's that gpupipe knows to be files with a label each")
    _check_whole(dataset)
    files = _of_timm(dataset) if _library(base) == "timm" else _of_torchvision(dataset, base.__name__)
    if len(files.paths) != len(dataset) or len(files.labels) != len(dataset):
        raise _refused(dataset, f"it lists {len(files.paths)} files, but its len() is {len(dataset)}")
    _check_paths(dataset, files.paths)
    return _with_plain_labels(dataset, files)


def _makes_batches(dataset: Any) -> bool:
    """Whether it has a `__getitems__`, be it its class's or not: that of torch's Subset only asks the dataset in it."""
    own: Any = getattr(dataset, "__getitems__", None)
    return bool(own) and getattr(own, "__func__", None) is not torch.utils.data.Subset.__getitems__


def _library(kind: type) -> str:
    library, _, rest = kind.__module__.partition(".")
    return library if (library, rest.partition(".")[0]) in (("torchvision", "datasets"), ("timm", "data")) else ""


def _check_class(dataset: Any, kind: type) -> None:
    """Raise TranslationError where the program has replaced what a library's class does."""
    method = replaced_in(kind)
    if method:
        raise _refused(dataset, f"{method} was replaced by another, which can't be read")


def _refused(dataset: Any, reason: str, alternative: str = AS_IT_IS) -> TranslationError:
    return TranslationError(type(dataset).__name__, reason, alternative)


def _chosen(dataset: Any, files: Files) -> Files:
    """Those of a Subset."""
    indices = np.asarray(dataset.indices)
    size = len(files.chosen)
    whole = indices.ndim == 1 and (indices.dtype.kind in "iu" or not len(indices))
    if not whole or ((indices < -size) | (indices >= size)).any():
        raise _refused(dataset, f"its indices are not one list of numbers from {-size} to {size - 1}")
    return replace(files, chosen=files.chosen[indices.astype(np.int64)])


def _joined(dataset: Any, parts: list[Files]) -> Files:
    """All parts, one behind the other."""
    if any(part.target_transform != parts[0].target_transform for part in parts):
        raise _refused(dataset, "its parts have different target_transforms")
    begins = np.cumsum([0, *(len(part.paths) for part in parts)])
    return Files(
        [path for part in parts for path in part.paths],
        [label for part in parts for label in part.labels],
        tuple(transform for part in parts for transform in part.transforms),
        parts[0].target_transform,
        np.concatenate([part.chosen + begin for part, begin in zip(parts, begins, strict=False)]),
        any(part.skips for part in parts),
    )


def _of_torchvision(dataset: Any, name: str) -> Files:
    if name == "OxfordIIITPet":
        (target,) = dataset._target_types if len(dataset._target_types) == 1 else ("several",)
        if target not in PETS:
            raise _refused(dataset, f"its target_types are {dataset._target_types}, not one class number")
        paths, labels = dataset._images, getattr(dataset, PETS[target])
    elif name == "INaturalist":
        paths, labels = _inaturalist(dataset)
    elif name in LISTS:
        lists = [getattr(dataset, attribute, None) for attribute in LISTS[name]]
        if any(found is None for found in lists):
            raise _refused(dataset, f"this torchvision's has no {' and '.join(LISTS[name])}")
        paths, labels = lists if len(lists) == 2 else _apart(lists[0])
    elif name in OWN_MODE:
        raise _refused(dataset, "it does not open its images as RGB, which recipes are made for")
    else:
        raise _refused(dataset, "its samples are not image files with one label each")
    _check_loader(dataset)
    transform, target_transform = _transforms(dataset, name)
    return Files(paths, labels, (transform,), target_transform, np.arange(len(paths)))


def _apart(pairs: Any) -> Listed:
    return [path for path, _ in pairs], [label for _, label in pairs]


def _inaturalist(dataset: Any) -> Listed:
    if len(dataset.target_type) != 1:
        raise _refused(dataset, f"its target_type is {dataset.target_type}, several labels a sample")
    if getattr(dataset, "loader", None) is None:
        raise _refused(dataset, "without a loader its images are not opened as RGB", "pass loader=default_loader")
    (kind,) = dataset.target_type
    root = Path(dataset.root)
    paths = [root / dataset.all_categories[category] / name for category, name in dataset.index]
    full = [category for category, _ in dataset.index]
    return paths, full if kind == "full" else [dataset.categories_map[category][kind] for category in full]


def _check_loader(dataset: Any) -> None:
    """Raise TranslationError unless it opens files by Pillow, as RGB."""
    loader = getattr(dataset, "loader", getattr(dataset, "_loader", None))
    backend = sys.modules["torchvision"].get_image_backend()
    name = getattr(loader, "__name__", "")
    known = getattr(loader, "__module__", "") == "torchvision.datasets.folder" and name in RGB_LOADERS
    if loader is not None and (not known or is_foreign(loader)):
        raise _refused(dataset, f"its loader is {name or loader}", "leave loader out, which opens images by Pillow")
    if name == "default_loader" and is_foreign(sys.modules["torchvision.datasets.folder"].pil_loader):
        raise _refused(dataset, "torchvision.datasets.folder.pil_loader was replaced by another, which can't be read")
    if name == "default_loader" and backend != "PIL":
        raise _refused(dataset, f"torchvision's image backend is {backend}", "call set_image_backend('PIL')")


def _check_whole(dataset: Any) -> None:
    """Raise TranslationError where Pillow fills up images that are cut."""
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        reason = "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set, and with a recipe an image that is cut is an error"
        raise _refused(dataset, reason, "leave it unset and pass on_error='skip', which takes another image")


def check_depth(dataset: Any, files: Files) -> None:
    """Raise TranslationError where a file has levels that Pillow's RGB clips and a recipe scales to 8 bits."""
    if any(str(path).lower().endswith(MAYBE_DEEP) for path in files.paths):
        deep = open_listed(files.paths, files.labels).deep
        if deep:
            reason = f"{deep[0]} is of Pillow's mode {deep[1]}, which a recipe scales to 8 bits, and Pillow not"
            raise _refused(dataset, reason, f"save it with 8 bits a channel; {AS_IT_IS}")


def _transforms(dataset: Any, name: str) -> tuple[Any, Transform | None]:
    """Of the image and of the label: those that `__getitem__` calls."""
    if name not in ("OxfordIIITPet", "Places365"):
        return dataset.transform, dataset.target_transform
    both = dataset.transforms
    if both is None:
        return None, None
    _check_class(dataset, type(both))
    if type(both).__name__ != "StandardTransform" or not _library(type(both)):
        raise _refused(dataset, "its transforms= is called with image and label together", "pass transform=")
    return both.transform, both.target_transform


def _of_timm(dataset: Any) -> Files:
    reader: Any = getattr(dataset, "reader", None)
    kind = type(reader)
    if type(dataset).__name__ != "ImageDataset" or kind.__name__ != "ReaderImageFolder" or _library(kind) != "timm":
        raise _refused(dataset, f"its reader is {kind.__module__}.{kind.__name__}, which is no folder's of timm's")
    _check_class(dataset, kind)
    if dataset.load_bytes or dataset.input_img_mode != "RGB" or getattr(dataset, "additional_features", None):
        raise _refused(dataset, "it has load_bytes, additional_features or another input_img_mode than RGB")
    paths, labels = _apart(reader.samples)
    return Files(paths, labels, (dataset.transform,), dataset.target_transform, np.arange(len(paths)), skips=True)


def _check_paths(dataset: Any, paths: Sequence[Any]) -> None:
    """Raise TranslationError unless they are texts or `Path`s: `open` takes bytes and numbers, too."""
    others = {type(path) for path in paths if not isinstance(path, str | os.PathLike)}
    if others:
        raise _refused(dataset, f"its files are {', '.join(sorted(kind.__name__ for kind in others))}, not str or Path")


def _with_plain_labels(dataset: Any, files: Files) -> Files:
    """Labels as integers."""
    kinds = {type(label) for label in files.labels}
    if len(kinds) > 1 or not all(kind is int or issubclass(kind, np.integer) for kind in kinds):
        raise _refused(dataset, f"its labels are {', '.join(sorted(kind.__name__ for kind in kinds))}, not integers")
    if not kinds - {int}:
        return files
    own = OfKind(kinds.pop(), files.target_transform)
    return replace(files, labels=[int(label) for label in files.labels], target_transform=own)


def _try_labels(dataset: Any, files: Files) -> None:
    """Raise TranslationError unless numbers of one type or arrays of one form are made of the labels, of the first
    `TRIED` that differ; what that draws is put back. Of one that it raises at later, the sample is to tell."""
    if files.target_transform is None or not len(files.chosen):
        return
    labels = dict.fromkeys(map(files.labels.__getitem__, files.chosen.tolist()))
    forms: dict[str, int] = {}
    with kept(global_generators()):
        for label in islice(labels, TRIED):
            try:
                value = files.target_transform(label)
            except Exception as error:
                if not forms:
                    raise _refused(dataset, f"its target_transform raised {type(error).__name__}: {error}") from error
                continue
            if not isinstance(value, int | float | np.number | np.bool_ | np.ndarray | torch.Tensor):
                raise _refused(dataset, f"its target_transform gives {type(value).__name__}, no number or array")
            dtype = str(getattr(value, "dtype", "int64")).removeprefix("torch.")
            if dtype == "bfloat16" or (np.ndim(value) == 0 and "int" in dtype and dtype != "int64"):
                reason = f"its labels are {dtype}, and with a recipe int64 or float"
                raise _refused(dataset, reason, "pass target_transform=int")
            forms.setdefault(form_of(value), label)
    if len(forms) > 1:
        shown = ", ".join(f"{form} for {label}" for form, label in list(forms.items())[:3])
        raise _refused(dataset, f"its target_transform gives {shown}", "let it give one type, as float(label)")
