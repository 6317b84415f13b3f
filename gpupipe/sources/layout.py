"""Which files an image folder's samples are: an image each, and the files of other fields in parallel folders."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

from gpupipe.batch import Field, Schema
from gpupipe.errors import ConfigError
from gpupipe.sources.wanted import Names, Wanted, check_kind, wanted

__all__ = ["EXTENSIONS", "Layout", "files_of"]

# torchvision.datasets.folder.IMG_EXTENSIONS
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


@dataclass(frozen=True)
class Layout:
    """Where the files of a sample lie, whose image is `base`/key.

    suffix: of the images; empty: any usual extension. others: of each file folder and suffix, which takes the place of
    the image's extension (empty: the same name); None: the image itself.
    """

    root: str
    folder: str
    suffix: str
    others: tuple[tuple[str, str] | None, ...]

    @classmethod
    def of(cls, root: str, schema: Schema, files: Wanted) -> Layout:
        """For a schema whose first image the others lie parallel to."""
        first = schema[schema.images[0]]
        others = [None if number == files.image else (names[0], names[1]) for number, names in enumerate(files.files)]
        return cls(root, first.folder or "", first.suffix or "", tuple(others))

    @cached_property
    def base(self) -> str:
        """The folder of the images."""
        return self.within(self.folder)

    def within(self, folder: str) -> str:
        """The path of a folder below the root, or of one elsewhere that was passed so."""
        return os.path.normpath(os.path.join(self.root, folder)) if folder else self.root

    def path(self, key: str, number: int) -> str:
        """Of one of the files of a sample."""
        other = self.others[number]
        if other is None:
            return f"{self.base}/{key}"
        suffix = other[1]
        return f"{self._paths[number]}/{os.path.splitext(key)[0] + suffix if suffix else key}"

    @cached_property
    def _paths(self) -> list[str]:
        """Of each file's folder."""
        return [self.base if other is None else self.within(other[0]) for other in self.others]

    @property
    def folders(self) -> list[str]:
        """Those of the other fields."""
        return list(dict.fromkeys(other[0] for other in self.others if other is not None))

    @cached_property
    def apart(self) -> set[str]:
        """Paths of folders in which no images are looked for."""
        return {self.within(folder) for folder in self.folders} - {self.base}

    def is_image(self, name: str) -> bool:
        """Whether a file's name is that of a sample's image, and of no other field beside it."""
        return (name.endswith(self.suffix) if self.suffix else name.lower().endswith(EXTENSIONS)) and not (
            name.endswith(self.beside)
        )

    @cached_property
    def beside(self) -> tuple[str, ...]:
        """Suffixes of other fields' files in the images' folder."""
        others = (other for other in self.others if other is not None and self.within(other[0]) == self.base)
        return tuple(suffix for _, suffix in others if suffix and suffix != self.suffix)


def files_of(schema: Schema) -> Wanted:
    """What a schema wants of an image folder. Raises ConfigError for a field that has no folder of its own."""
    if not schema.images:
        raise ConfigError(f"fields: the samples of an image folder are its images, and {', '.join(schema)} have none")
    return wanted(schema, lambda name, field: _file_of(name, field, name == schema.images[0]))


def _file_of(name: str, field: Field, is_first: bool) -> tuple[Names, str]:
    """Folder and suffix of a field's files, and the keys within them."""
    if is_first and field.folder is None and field.suffix is None:
        return (), ""
    if isinstance(field.source, int) or (field.folder is None and not is_first):
        raise ConfigError(
            f"fields: {name!r} has source={field.source!r}, folder={field.folder!r}; in an image folder pass folder= "
            "and suffix=, as gpupipe.Mask(folder='masks', suffix='.png')"
        )
    path = (field.source or "").removeprefix("json:")
    if field.suffix is not None:
        check_kind(name, field, [field.suffix.lower().lstrip(".")], path)
    return (field.folder or "", field.suffix or ""), path
