"""Members of a shard grouped into samples by WebDataset's naming, and their class numbers."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any, NamedTuple, NoReturn

import numpy as np

from gpupipe.batch import Scalar
from gpupipe.errors import DataError
from gpupipe.sources.headers import ReadRange
from gpupipe.sources.tar import Member
from gpupipe.sources.values import as_array, as_int64, as_value, document, within
from gpupipe.sources.wanted import ALONE, Names, Place, Wanted
from gpupipe.texts import printable

__all__ = ["IMAGE_EXTENSIONS", "NO_LABEL", "Sample", "class_number", "group", "read_label", "split_name"]

# Members are chosen by this list and never decoded otherwise: nothing in a shard is unpickled or run.
IMAGE_EXTENSIONS = frozenset({"jpg", "jpeg", "png", "webp"})
# The image of a sample that has none of those.
OTHER_EXTENSIONS = frozenset({"avif", "bmp", "gif", "j2k", "jp2", "pbm", "pgm", "ppm", "tif", "tiff"})
# What holds a label is read whole, by several threads at once.
MOST_BYTES = {"cls": 4 << 10, "json": 1 << 20}
NO_LABEL = -(2**63)
"""In the place of a class number that is not known."""
LABEL = Scalar()
META = re.compile(r"__[^/]*__($|/)")


class Sample(NamedTuple):
    """The members of one key: the files that are wanted, None where there is none, and what may hold its label: of each
    kind there should be one at most."""

    key: str
    files: tuple[Member | None, ...]
    cls: Sequence[Member]
    json: Sequence[Member]

    @property
    def offset(self) -> int:
        """Of the first of its members."""
        return min(member.offset for member in (*self.files, *self.cls) if member is not None)


def group(members: Iterable[Member], wanted: Wanted, shard: str) -> Iterator[Sample]:
    """The samples of a shard in its order, each when its last member is there. Hidden files, WebDataset's `__meta__`
    and keys without files that are wanted are left out: a .json alone, which may describe the shard, makes no sample
    beside other files.

    Raises DataError for a member or key that comes twice, a key with several images, or with a label but no image.
    """
    seen = set()
    for key, parts in _runs(members, shard):
        if key in seen:
            _refuse(shard, key, parts, "comes twice: its members must lie side by side and every key be used once")
        seen.add(key)
        sample = _sample(key, parts, wanted, shard)
        if sample is not None:
            yield sample


def read_label(sample: Sample, read: ReadRange, shard: str, label_field: str) -> int:
    """The label: from `.cls`, or from `label_field` of `.json` where there is no `.cls` or another field is asked for.

    Raises DataError where there is none or it is no integer.
    """
    in_cls = bool(sample.cls) and (label_field == "label" or not sample.json)
    members, kind = (sample.cls, "cls") if in_cls else (sample.json, "json")
    where = _where(shard, sample.key, members[0].offset if members else sample.offset)
    if not members:
        raise DataError(
            f"{where} has no label: add a .cls member with the class number, or a .json with {label_field!r}; {ALONE}"
        )
    if len(members) > 1:
        raise DataError(f"{where} has {_names(members)}, and nothing says which holds the label: leave the others out")
    (member,) = members
    if member.size > MOST_BYTES[kind]:
        raise DataError(
            f"{where}: '{printable(member.name)}' has {member.size:,} bytes, more than the {MOST_BYTES[kind]:,} that a "
            f".{kind} may have; put the class number alone into a .cls member"
        )
    data = np.frombuffer(read(member.offset, member.size), np.uint8)
    try:
        return _number_of_text(data.tobytes()) if in_cls else _number_of_json(document(data), label_field)
    except ValueError as error:
        raise DataError(f"{where}: {error}") from error


def class_number(sample: Sample, place: Place, read: ReadRange) -> int:
    """The integer of a label whose field says where it is; NO_LABEL where there is none, which `fetch` tells."""
    member = sample.files[place.file]
    if member is None or member.size > MOST_BYTES["json"]:
        return NO_LABEL
    data = np.frombuffer(read(member.offset, member.size), np.uint8)
    try:
        value = as_array(LABEL, within(document(data), place.path)) if place.path else as_value(LABEL, data)
    except (ValueError, TypeError, OverflowError):
        return NO_LABEL
    return value if type(value) is int else NO_LABEL


def _number_of_text(text: bytes) -> int:
    try:
        return as_int64(int(text.decode("ascii")))
    except ValueError:
        raise ValueError(f"the label {text[:40]!r} is no integer; write the class number as text") from None


def _number_of_json(record: Any, label_field: str) -> int:
    if not isinstance(record, dict) or label_field not in record:
        fields = reprlib.repr(list(record)) if isinstance(record, dict) else "it is no object"
        raise ValueError(f"its .json has no field {label_field!r} (it has: {fields}); pass label_field=...; {ALONE}")
    label = record[label_field]
    if type(label) is not int or not -(2**63) <= label < 2**63:
        raise ValueError(f"the field {label_field!r} of its .json is {reprlib.repr(label)}, no class number")
    return label


def split_name(name: str) -> tuple[str, str] | None:
    """Key and lower-case extension: the name is cut at the first dot of its last part. None for what has no key."""
    folder, slash, base = name.rpartition("/")
    stem, dot, extension = base.partition(".")
    if not stem or not dot or META.match(name):
        return None
    return folder + slash + stem, extension.lower()


Parts = dict[str, Member]


def _runs(members: Iterable[Member], shard: str) -> Iterator[tuple[str, Parts]]:
    """Each run of members with one key, by extension."""
    current, parts = "", Parts()
    for member in members:
        names = split_name(member.name)
        if names is None:
            continue
        key, extension = names
        if key != current and parts:
            yield current, parts
            parts = Parts()
        current = key
        if extension in parts:
            _refuse(shard, key, {extension: member}, f"has its member '.{printable(extension)}' twice")
        parts[extension] = member
    if parts:
        yield current, parts


def _sample(key: str, parts: Parts, wanted: Wanted, shard: str) -> Sample | None:
    named = {extension for names in wanted.files for extension in names}
    files = tuple(_file(key, parts, names, named, shard) for names in wanted.files)
    cls, json = (_named(parts, "cls"), _named(parts, "json")) if wanted.labels else ((), ())
    if wanted.is_usual and files == (None,) and cls:
        kinds = ", ".join(sorted(IMAGE_EXTENSIONS | OTHER_EXTENSIONS))
        _refuse(shard, key, parts, f"has a label but no image ({kinds}); its members: {_names(list(parts.values()))}")
    telling = [file for names, file in zip(wanted.files, files, strict=True) if wanted.tells(names)]
    return Sample(key, files, cls, json) if any(telling) or cls else None


def _file(key: str, parts: Parts, names: Names, named: Set[str], shard: str) -> Member | None:
    """The member with the first of these extensions that is there; no extensions: the image that none names."""
    if names:
        return next((parts[extension] for extension in names if extension in parts), None)
    unnamed = {extension: member for extension, member in parts.items() if extension not in named}
    images = _of(unnamed, IMAGE_EXTENSIONS) or [unnamed[one] for one in sorted(OTHER_EXTENSIONS & unnamed.keys())]
    if len(images) > 1:
        count = f"has {len(images)} images, {_names(images)}"
        _refuse(
            shard,
            key,
            parts,
            f"{count}: name the one by gpupipe.Image('jpg'), or leave the others out (a key ends at the first dot)",
        )
    return images[0] if images else None


def _of(parts: Parts, kinds: Set[str]) -> list[Member]:
    """The members whose last extension is in `kinds`."""
    return [member for extension, member in parts.items() if extension.rpartition(".")[2] in kinds]


def _named(parts: Parts, kind: str) -> list[Member]:
    """The member with this extension, else those whose last extension it is."""
    return [parts[kind]] if kind in parts else _of(parts, {kind})


def _names(members: Sequence[Member]) -> str:
    return " and ".join(f"'{printable(member.name)}'" for member in members[:4]) + (" ..." if len(members) > 4 else "")


def _refuse(shard: str, key: str, parts: Parts, reason: str) -> NoReturn:
    offset = min(member.offset for member in parts.values())
    raise DataError(f"{_where(shard, key, offset)} {reason}; pack the shard anew")


def _where(shard: str, key: str, offset: int) -> str:
    return f"key '{printable(key)}' in shard {shard} at offset {offset}"
