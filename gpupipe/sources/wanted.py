"""Which files of a sample a schema wants, and which field is in which: members of shards, files in parallel folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gpupipe.batch import Array, Boxes, Field, Index, Key, Points, Scalar, Schema, Text
from gpupipe.errors import ConfigError

__all__ = ["ALONE", "Names", "Place", "Wanted", "check_kind", "is_class_number", "is_own", "wanted"]

ALONE = "for images without labels pass fields={'image': gpupipe.Image()} (`gpupipe index --no-labels`)"
"""For messages about data that lacks labels."""

Names = tuple[str, ...]
"""How a source finds a file of a sample: in shards the extensions, of which the first that is there counts; in a folder
the folder and the suffix. Empty: the image, whose extension is any of the usual."""


class Place(NamedTuple):
    """Where a field is: in which of the files, and at which keys of a JSON document in it (none: it is the file)."""

    file: int
    path: str


@dataclass(frozen=True)
class Wanted:
    """The files, each once, however many fields are in it.

    image: which of them is the first image, whose height and width an index holds. labels: whether the index holds the
    class number of each sample; label: otherwise where that is, if a field says so: an index of shards then holds it.
    is_usual: whether image and labels are all, and every sample has both: the index of old.
    """

    files: tuple[Names, ...]
    places: dict[str, Place]
    image: int | None
    labels: bool
    is_usual: bool
    label: Place | None = None

    def names(self, file: int) -> list[str]:
        """The fields that are in a file."""
        return [name for name, place in self.places.items() if place.file == file]

    def tells(self, names: Names) -> bool:
        """Whether a key that has this file is a sample: not a .json alone, which may describe the shard, beside other
        files."""
        others = any(not _is_json(one) for one in self.files)
        return not (others and _is_json(names))


def wanted(schema: Schema, locate: Callable[[str, Field], tuple[Names, str]]) -> Wanted:
    """What a schema wants; `locate` gives the file of a field, and the keys within it.

    Raises ConfigError where nothing is wanted.
    """
    files: dict[Names, int] = {}
    places = {}
    for name, field in schema.items():
        if is_own(name, field) or is_class_number(name, field):
            continue
        names, path = locate(name, field)
        places[name] = Place(files.setdefault(names, len(files)), path)
    labels = any(is_class_number(name, field) for name, field in schema.items())
    image = places[schema.images[0]].file if schema.images else None
    if not files:
        raise ConfigError(f"fields: {', '.join(schema)} are in no file; name one that is, such as gpupipe.Image")
    is_usual = list(files) == [()] and labels and schema[schema.images[0]].missing == "error"
    label = places.get("label") if isinstance(schema.get("label"), Array) else None
    return Wanted(tuple(files), places, image, labels, is_usual, label)


def _is_json(names: Names) -> bool:
    return bool(names) and all(name.endswith("json") for name in names)


def is_own(name: str, field: Field) -> bool:
    """Whether it is what the source itself knows, and no part of a sample: a key or an index."""
    if isinstance(field, Key | Index) and (field.source is not None or field.folder is not None):
        raise ConfigError(
            f"fields: {name!r} is {type(field).__name__}, which the source gives; for what lies at "
            f"{field.source or field.folder!r} pass gpupipe.Text or Scalar"
        )
    return isinstance(field, Key | Index)


def is_class_number(name: str, field: Field) -> bool:
    """Whether it is the label of old: the number of a folder's class, or what .cls or .json say."""
    if name != "label" or not isinstance(field, Scalar) or field.source is not None or field.folder is not None:
        return False
    if field.missing != "error":
        raise ConfigError(
            "fields: 'label' is the class number, which every sample has; where some lack it pass its source, such as "
            "gpupipe.Scalar('cls', missing='skip')"
        )
    return True


def check_kind(name: str, field: Field, extensions: Iterable[str], path: str) -> None:
    """Raise ConfigError for a field that can't be in files with these extensions, or at keys in them."""
    numbers = isinstance(field, Array | Boxes | Points)
    for extension in extensions:
        last = extension.rpartition(".")[2]
        if path and not (last == "json" and (numbers or isinstance(field, Text))):
            where = f"under {path!r} of .{extension}; keys are of .json, and of Text, Scalar, Array, Boxes and Points"
        elif not path and numbers and not isinstance(field, Scalar) and last not in ("json", "npy"):
            where = f"in .{extension}; it can be in .npy or .json"
        else:
            continue
        raise ConfigError(f"fields: {name!r} is {type(field).__name__}, which can't be {where}")
