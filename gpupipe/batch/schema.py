"""The fields of a data set by name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import ItemsView, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

from gpupipe.batch.fields import Array, Boxes, Field, Image, Mask, Pad, Points, Scalar
from gpupipe.errors import ConfigError

__all__ = ["Schema"]

MOST_IMAGES = 256
"""So many image fields of a sample can be drawn independently."""
LATER = frozenset({"background", "choose", "numbers", "tokenizer"})


class Schema(Mapping[str, Field]):
    """Field by name, in their order. Raises ConfigError for what is no field, and for names that lead nowhere."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        if not isinstance(fields, Mapping) or not fields:
            raise ConfigError(
                f"fields={fields!r} must be a dict of a name and a field each: {{'image': gpupipe.Image('jpg')}}"
            )
        for name, field in fields.items():
            if not isinstance(name, str) or not isinstance(field, Field):
                raise ConfigError(
                    f"fields: {name!r} is {field!r}; pass a name and a field, such as gpupipe.Image, Mask, Boxes, "
                    "Points, Scalar, Array, Text, Bytes, Key or Index"
                )
        self._fields = dict(fields)
        for name, field in self._fields.items():
            self._check(name, field)

    @classmethod
    def of(cls, fields: Mapping[str, Field] | None) -> Schema:
        """Those fields; None: `image` and `label`, a class number."""
        if isinstance(fields, Schema):
            return fields
        return cls({"image": Image(), "label": Scalar()} if fields is None else fields)

    def items(self) -> ItemsView[str, Field]:
        return self._fields.items()

    def __getitem__(self, name: str) -> Field:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"Schema({self._fields!r})"

    # What each batch asks for is found once.

    @cached_property
    def images(self) -> tuple[str, ...]:
        """The names of the image fields."""
        return self.of_kind(Image)

    @cached_property
    def pixels(self) -> tuple[str, ...]:
        """The names of the fields of images and masks."""
        return self.of_kind(Image) + self.of_kind(Mask)

    def of_kind(self, kind: type[Field]) -> tuple[str, ...]:
        """The names of the fields of a kind."""
        return tuple(name for name, field in self.items() if isinstance(field, kind))

    @cached_property
    def is_pair(self) -> bool:
        """Whether a batch is the tuple of image and label, rather than a dict."""
        usual = list(self) == ["image", "label"] and type(self["image"]) is Image and isinstance(self["label"], Array)
        return usual and not _is_masked(self["image"])

    def drawn_as(self, name: str) -> str:
        """The image field whose draws, crop and size a geometric field has: an image without `geometry` its own."""
        field = self[name]
        assert isinstance(field, Image | Mask | Boxes | Points)
        if field.geometry is not None:
            return field.geometry
        return name if isinstance(field, Image) else self.images[0]

    def pixel_policy(self, name: str) -> Literal["stack", "list"] | Pad:
        """How the pixels of an image or mask are collated; of a mask without a word of its own as its image's, but that
        this one's mask is enough."""
        policy: Any = self[name].collate
        if policy is None and isinstance(self[name], Mask):
            leader = self[self.drawn_as(name)].collate
            policy = replace(leader, value=0, mask=False) if isinstance(leader, Pad) else leader
        return policy or "stack"

    def number(self, name: str) -> int:
        """By which an image's draws are told apart from other images': 0 for the schema's first, which so has the draws
        of image and label; that of the image whose geometry it shares."""
        return self.images.index(self.drawn_as(name))

    def per_view(self, views: int) -> set[str]:
        """The columns of a batch that are a tuple with an entry for each view; of one view pixels alone are."""
        names = set(self.pixels)
        names |= {f"{name}_mask" for name in names if _is_masked(self[name])}
        if views > 1:
            following = {*self.of_kind(Boxes), *self.of_kind(Points), *self.labels}
            names |= following | {f"{name}_mask" for name in following}
        return names

    @property
    def labels(self) -> set[str]:
        """The fields whose rows are dropped with those of boxes or points."""
        return {label for name in self for label in self.labels_of(name)}

    def labels_of(self, name: str) -> tuple[str, ...]:
        """Those of one field of boxes or points."""
        field = self[name]
        return tuple(field.labels) if isinstance(field, Boxes | Points) else ()

    def numbering(self, boxes: str) -> tuple[str, ...]:
        """The masks whose values number a field's boxes."""
        return tuple(name for name in self.of_kind(Mask) if getattr(self[name], "numbers", None) == boxes)

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that differ between schemas whose batches differ; empty for the usual image and label, as saved
        states that are older than schemas have none."""
        if self._text in [f"image={_text(Image())}|label={_text(usual)}" for usual in (Scalar(), Array())]:
            return ""
        return hashlib.blake2b(self._text.encode(), digest_size=8).hexdigest()

    @property
    def _text(self) -> str:
        return "|".join(f"{name}={_text(field)}" for name, field in self.items())

    def _check(self, name: str, field: Field) -> None:
        geometry = getattr(field, "geometry", None)
        leader = self.get(geometry or "")
        if geometry is not None and (not isinstance(leader, Image) or leader.geometry is not None):
            raise ConfigError(
                f"fields: {name!r} has geometry={geometry!r}, which is no image field with draws of its own; there are "
                f"{', '.join(map(repr, self.images)) or 'no image fields'}"
            )
        if isinstance(field, Image) and self.number(name) >= MOST_IMAGES:
            raise ConfigError(
                f"fields: {name!r} is the image field number {self.number(name) + 1}; so as to be drawn by itself it "
                f"must be among the first {MOST_IMAGES}, or share another's draws by geometry="
            )
        numbered = field.numbers if isinstance(field, Mask) else None
        boxes = self.get(numbered or "")
        if numbered is not None and not (isinstance(boxes, Boxes) and self.drawn_as(numbered) == self.drawn_as(name)):
            raise ConfigError(
                f"fields: {name!r} has numbers={numbered!r}, which is no field of boxes of the same image; there are "
                f"{', '.join(map(repr, self.of_kind(Boxes))) or 'no boxes'}"
            )
        if field.geometric and not self.images:
            raise ConfigError(f"fields: {name!r} is {type(field).__name__}, which follows an image, but there is none")
        for label in self.labels_of(name):
            if not isinstance(self.get(label), Array) or isinstance(self[label], Scalar):
                raise ConfigError(
                    f"fields: {name!r} has labels={label!r}, which is no field that can be filtered; add one that has "
                    f"a row for each of {name!r}, as {label!r}: gpupipe.Array(...)"
                )
            for other in self:
                if other != name and label in self.labels_of(other):
                    raise ConfigError(
                        f"fields: {label!r} is among the labels of {name!r} and of {other!r}, but its rows can be "
                        "dropped with those of one; give the other a field of its own"
                    )
        if _is_masked(field) and f"{name}_mask" in self:
            raise ConfigError(
                f"fields: {name!r} is padded with a mask, {name + '_mask'!r}, but a field has this name; rename that"
            )


def _is_masked(field: Field) -> bool:
    return isinstance(field.collate, Pad) and field.collate.mask


def _text(field: Any) -> str:
    """As a dataclass prints itself, a function by its name, an object without its address; without those settings that
    states may be older than."""
    parts = []
    for key in field.__dataclass_fields__:
        value = getattr(field, key)
        if key in LATER and not value:  # in this order: others may be arrays
            continue
        said = getattr(value, "__qualname__", None) or re.sub(r" at 0x[0-9a-f]+", "", repr(value))
        parts.append(f"{key}={said}")
    return f"{type(field).__name__}({', '.join(parts)})"
