"""The kinds of fields that a sample can have. A field says where in a sample it lies and what becomes of it.

The kind decides what a recipe does, as torchvision's tv_tensors do: what is geometric (images, masks, boxes, points)
follows each crop, flip and operation that moves pixels; what is colour touches images alone; the rest is passed on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from gpupipe.errors import ConfigError
from gpupipe.host.checks import whole

__all__ = [
    "Array",
    "Boxes",
    "Bytes",
    "Field",
    "Frames",
    "Image",
    "Index",
    "Key",
    "Mask",
    "Pad",
    "Points",
    "Scalar",
    "Text",
]


class _Missing:
    """The value of a field that a sample lacks."""

    def __repr__(self) -> str:
        return "MISSING"

    def __reduce__(self) -> str:
        return "MISSING"


MISSING = _Missing()


@dataclass(frozen=True)
class Pad:
    """Collation of arrays of different sizes: each is filled up at the end with `value` to the largest of the batch.

    multiple: every side that differs becomes a multiple of it; the first one also in a batch where it happens to be the
    same, if it is known to differ: of arrays with one side, of boxes and points, and with a mask.
    mask: whether the batch also gets a bool array `<field>_mask`, (N, longest), True where there is data, for arrays
    that differ along their first side alone; of images (N, height, width).

    Images lie top left, their height and width are padded, and `value` is what comes out there, behind `Normalize`;
    masks are padded with what their field ignores.
    """

    value: float = 0
    multiple: int = 1
    mask: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.multiple, int) or self.multiple < 1:
            raise ConfigError(f"Pad: multiple={self.multiple!r} must be an int of at least 1")
        if not isinstance(self.value, Real):
            raise ConfigError(f"Pad: value={self.value!r} must be a number")


Usual: TypeAlias = Literal["stack", "ragged", "list"]
Collate: TypeAlias = Usual | Pad | Callable[[list[Any]], Any]
"""How the samples' values become one of the batch's: a tensor (N, ...); `Ragged` values and offsets; a padded tensor; a
list; or what a function makes of the list of the values, in a worker process. Lists have arrays as tensors."""

Choices: TypeAlias = dict[str, tuple[str, ...]]
PLAIN = ("stack", "ragged", "list")
MOST_FRAMES = 1024
"""Of a sample: so many can be drawn by themselves."""
PIXELS = "pass 'stack', 'list' or gpupipe.Pad()"


@dataclass(frozen=True)
class Field:
    """What all kinds have.

    source:  where in a sample it lies; None: under the field's own name. In shards the members' extensions, of which
             one is there ("jpg;png;webp"), or a key of a .json member ("json:score", "json:objects.boxes"). In a
             user's dataset a key of its dict, or a place in its tuple (an int). In a table a column, or what is at
             keys of objects in it ("target.boxes").
    folder, suffix: for image folders: the folder, below the root, that has a file for each image, and that file's
             suffix in the place of the image's ("masks", ".png").
    missing: what becomes of a sample that lacks the field: "error" (a SampleError), "skip" (the next good sample takes
             its place, and it is listed in `bad_samples`), or "default": `default` stands in.
    collate: how the samples' values become the batch's, see `Collate`; None: `usual`, and "ragged" for the labels of
             boxes and points.

    Raises ConfigError for settings that do not go together.
    """

    source: str | int | None = None
    _: KW_ONLY
    folder: str | None = None
    suffix: str | None = None
    missing: Literal["error", "skip", "default"] = "error"
    default: Any = None
    collate: Collate | None = None

    usual: ClassVar[Usual] = "stack"
    geometric: ClassVar[bool] = False
    empty: ClassVar[Any] = None
    choices: ClassVar[Choices] = {"missing": ("error", "skip", "default")}

    def __post_init__(self) -> None:
        is_place = isinstance(self.source, str | int) and not isinstance(self.source, bool)
        self._check(self.source is None or is_place, "source", "must be a name, or a place in a tuple (an int)")
        for name, choices in (Field.choices | self.choices).items():
            self._check(getattr(self, name) in choices, name, f"must be one of {', '.join(choices)}")
        alone = self.default is not None and self.missing != "default"
        self._check(not alone, "default", "is used with missing='default' alone; pass that too")
        fits = not isinstance(self.empty, str | bytes) or isinstance(self.absent, type(self.empty))
        self._check(fits, "default", f"is none of its kind; pass {type(self.empty).__name__}")
        given: object = self.collate
        self._check(given is not Pad, "collate", "is the class; pass gpupipe.Pad()")
        is_policy = self.collate is None or self.collate in PLAIN or isinstance(self.collate, Pad)
        what = f"must be one of {', '.join(PLAIN)}, a gpupipe.Pad or a function"
        self._check(is_policy or callable(self.collate), "collate", what)
        fits_pixels = self.collate in (None, "stack", "list") or isinstance(self.collate, Pad)
        self._check(fits_pixels or not isinstance(self, Image | Mask), "collate", "is not for pixels: " + PIXELS)
        together = (self.suffix is None) == (self.folder is None) or isinstance(self, Image)
        self._check(
            together,
            "folder",
            f"and suffix={self.suffix!r} go together; pass both, folder='.' for files beside the images",
        )

    def _check(self, holds: bool, name: str, what: str) -> None:
        """Raise ConfigError for the setting of this name unless that holds."""
        if not holds:
            raise ConfigError(f"{type(self).__name__}: {name}={getattr(self, name)!r} {what}")

    @property
    def absent(self) -> Any:
        """What stands in for a value that is missing, under missing='default': a copy, as a batch may be changed."""
        return copy.deepcopy(self.empty if self.default is None else self.default)


class _Shapes(Field):
    """What boxes and points share: other fields may have a row for each."""

    labels: str | Sequence[str]

    usual: ClassVar[Usual] = "ragged"
    geometric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "labels", (self.labels,) if isinstance(self.labels, str) else tuple(self.labels))


@dataclass(frozen=True)
class Image(Field):
    """An encoded image file, or pixels: uint8 arrays (height, width, 3) or (height, width), torch tensors as
    torchvision has them, (3 or 1, height, width), or PIL images. Comes out as the recipe says.

    collate:    where the recipe's crop gives each image a size of its own: `Pad(multiple=32, mask=True)` makes one
                tensor (N, 3, height, width) of them, with a bool `<field>_mask` (N, height, width), True where there is
                an image (DETR's NestedTensor has the inverse); "list" a list of (3, height, width), as torchvision's
                detection models take them (views of one memory, all of which `torch.save` of one would write: save its
                `clone()`); "stack" (None) is for batches of one size, as an order of buckets gives.
    geometry:   the image field whose geometry it shares, which must have the same size; None: draws of its own.
    background: the colour, red, green and blue of 0 to 255, on which an image with transparency is laid; None: alpha is
                dropped, as by Pillow's `convert("RGB")`.

    The rest: see `gpupipe.Field`; missing="default" is none for an image.
    """

    geometry: str | None = None
    background: tuple[int, int, int] | None = None

    geometric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(self.missing != "default", "missing", "must be 'error' or 'skip': there is no default for an image")
        if self.background is not None:
            what = "must be three numbers of 0 to 255: red, green, blue"
            self._check(isinstance(self.background, Sequence) and len(self.background) == 3, "background", what)
            colour = tuple(whole("Image: background's part", level, 0, 256) for level in self.background)
            object.__setattr__(self, "background", colour)


@dataclass(frozen=True)
class Frames(Image):
    """Frames of a video: a video file, or a folder of image files, one a frame. Comes out as (N, frames, 3, height,
    width), each clip with one crop, one flip, one program of operations for all its frames.

    pattern:  of the names of frames that are files of a folder ("img_*.jpg"); None: all images. They come by their
              names' length, then by name.
    clip:     how many frames it has, and their distance: (8, 8) is of 57 frames the first, the ninth ... the last.
              (frames, None): one frame of each of so many equal parts of the video, as TSN.
    fps:      of video files: a clip lasts frames * stride / fps seconds, and has evenly the first frame of them to the
              last, as SlowFast's and PyTorchVideo's; None: each stride-th frame.
    clips:    so many a sample: a list of clips, or, with several views, of the views of the first clip, the second ...
    sampling: "random", drawn in each epoch, of several clips each in its own part of the video; or "even", at equal
              distances, one clip in the middle, one frame of each part from its middle: for tests.
    short:    what becomes of a video with fewer frames than its clip spans: "error" (a bad sample), or "loop": behind
              its last frame the first comes again.
    channels: "second" or, as PyTorchVideo's models take it, "first": (N, 3, frames, height, width).

    The draws are those of mmaction2's SampleFrames. The rest: see `gpupipe.Image` and `gpupipe.Field`.
    """

    _: KW_ONLY
    pattern: str | None = None
    clip: tuple[int, int | None] = (8, 8)
    fps: float | None = None
    clips: int = 1
    sampling: Literal["random", "even"] = "random"
    short: Literal["error", "loop"] = "error"
    channels: Literal["second", "first"] = "second"

    choices: ClassVar[Choices] = {
        "sampling": ("random", "even"),
        "short": ("error", "loop"),
        "channels": ("second", "first"),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(self.collate in (None, "stack"), "collate", "is not for clips, which are stacked, in one size")
        what = "must be two numbers of 1 and more, frames and stride, or (frames, None)"
        self._check(isinstance(self.clip, Sequence) and len(self.clip) == 2, "clip", what)
        frames, stride = self.clip
        whole("Frames: clip's frames", frames, 1, MOST_FRAMES)
        if stride is not None:
            whole("Frames: clip's stride", stride, 1, 1 << 20)
        whole("Frames: clips", self.clips, 1, MOST_FRAMES // frames + 1)
        self._check(self.fps is None or (self.fps > 0 and stride is not None), "fps", "must be above 0, with a stride")
        self._check(stride is not None or self.clips == 1, "clips", "is for a clip with a stride; pass one")
        object.__setattr__(self, "clip", (frames, stride))

    @property
    def count(self) -> int:
        """Frames of a sample."""
        return self.clip[0] * self.clips


@dataclass(frozen=True)
class Mask(Field):
    """A mask of one channel: a PNG file or the like, or an integer or bool array (height, width); resized by nearest
    neighbour. Comes out as (N, height, width) in its dtype.

    dtype:    of the masks: "uint8" (also of palettes, whose numbers are kept), "bool", "int16", "uint16", "int32",
              "int64". Another one that holds values which this can't is a SampleError. As bool all but 0 is True.
    ignore:   the value where there is no mask: outside of it, and all over under missing="default" without `default`;
              None: 255, as bool False.
    geometry: the image field whose geometry it follows; None: the schema's first one.
    collate:  as an image's; None: as that image's.
    numbers:  the field of boxes whose rows its values number, from 1 on; 0: none, as `ignore` is then. They are
              numbered anew where boxes are dropped, whose pixels become 0.

    The rest: see `gpupipe.Field`.
    """

    dtype: str = "uint8"
    ignore: int = None  # type: ignore[assignment]  # which is settled at once
    geometry: str | None = None
    numbers: str | None = None

    geometric: ClassVar[bool] = True
    choices: ClassVar[Choices] = {"dtype": ("uint8", "bool", "int16", "uint16", "int32", "int64")}

    def __post_init__(self) -> None:
        super().__post_init__()
        is_bool = self.dtype == "bool"
        if self.ignore is None:
            object.__setattr__(self, "ignore", 0 if is_bool or self.numbers else 255)
        fits = not self.numbers or (self.ignore == 0 and not is_bool)
        self._check(fits, "numbers", "goes with ignore=0, and not with dtype='bool'")
        low, below = (0, 2) if is_bool else (np.iinfo(self.dtype).min, np.iinfo(self.dtype).max + 1)
        self._check(not isinstance(self.collate, Pad) or not self.collate.value, "collate", "pads with ignore=")
        for name, value in {"ignore": self.ignore, "default": self.absent}.items():
            if not isinstance(value, np.ndarray):
                number = int(value) if is_bool and isinstance(value, bool) else value
                whole(f"Mask: dtype={self.dtype!r}, and {name}", number, low, below)

    @property
    def absent(self) -> Any:
        return self.ignore if self.default is None else self.default


@dataclass(frozen=True)
class Boxes(_Shapes):
    """Bounding boxes of one sample: (M, 4) numbers in pixels of the image. Come out as float32, in the same format, of
    which torchvision's `ops.box_convert` makes another.

    format:   "xyxy", "xywh" or "cxcywh", as torchvision's BoundingBoxFormat.
    labels:   fields with one row for each box (classes, areas), which are dropped with it.
    min_area: a box that has less left after clipping, in square pixels of the output, is dropped. They are clipped by
              the crop and by each operation that moves pixels.
    geometry: the image field whose geometry they follow; None: the schema's first one.

    The rest: see `gpupipe.Field`.
    """

    format: Literal["xyxy", "xywh", "cxcywh"] = "xyxy"
    labels: str | Sequence[str] = ()
    min_area: float = 1.0
    geometry: str | None = None

    empty: ClassVar[Any] = np.zeros((0, 4), np.float32)
    choices: ClassVar[Choices] = {"format": ("xyxy", "xywh", "cxcywh")}

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(self.min_area >= 0, "min_area", "must be 0 or more")


@dataclass(frozen=True)
class Points(_Shapes):
    """Points of one sample: (M, 2) numbers, x and y in pixels of the image. Come out as float32.

    labels:   fields with one row for each point, which are dropped with it.
    outside:  what becomes of a point that is no longer in the image: "drop", "clip" (to its border, as torchvision's
              `clamp_keypoints`), or "keep" as it is, so that there are as many as before.
    geometry: the image field whose geometry they follow; None: the schema's first one.

    The rest: see `gpupipe.Field`.
    """

    labels: str | Sequence[str] = ()
    outside: Literal["drop", "clip", "keep"] = "drop"
    geometry: str | None = None

    empty: ClassVar[Any] = np.zeros((0, 2), np.float32)
    choices: ClassVar[Choices] = {"outside": ("drop", "clip", "keep")}


@dataclass(frozen=True)
class Array(Field):
    """An array of any shape, or a number. `dtype`: to which it is cast, a NumPy name; a value that it can't hold (but
    for the rounding of floats) is a SampleError. None: its own, where ints become int64 and floats float64, as by
    torch's `default_collate`, and an empty list is as the batch's other rows, or int64. It follows no crop.

    The rest: see `gpupipe.Field`; missing="default" needs `default`.
    """

    dtype: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype is not None:
            try:
                np.dtype(self.dtype)
            except TypeError:
                raise ConfigError(f"{type(self).__name__}: dtype={self.dtype!r} is none of NumPy's") from None
        lacks = self.missing == "default" and self.default is None
        self._check(not lacks, "missing", "needs a default; pass that too")


@dataclass(frozen=True)
class Scalar(Array):
    """One number: comes out as (N,). The rest: see `gpupipe.Array` and `gpupipe.Field`."""


@dataclass(frozen=True)
class Text(Field):
    """A string; of a file or a shard's member, its bytes as UTF-8.

    choose:    whether there are several, one a line, of which each epoch's draws choose one: the same on any engine and
               number of ranks, and after a resume. A list of texts becomes such lines, and breaks in them spaces.
    tokenizer: a function that makes tokens of a list of texts, a row of ints for each (or a mapping with these as
               "input_ids", as Hugging Face's): comes out as int64 (N, length), or rows of other lengths by `collate`.
               It is called in the workers, on all texts of a batch at once, but by itself on what stands in for a bad
               sample, and on each part of a batch that DALI shares with the CPU: with one that pads to the longest text
               pass `Pad`. A text that it raises for is a bad sample.

    The rest: see `gpupipe.Field`.
    """

    choose: bool = False
    tokenizer: Callable[[list[str]], Any] | None = None

    usual: ClassVar[Usual] = "list"
    empty: ClassVar[Any] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        what = "must be a function that makes rows of ints of a list of texts"
        self._check(self.tokenizer is None or callable(self.tokenizer), "tokenizer", what)
        if self.tokenizer is not None and self.collate is None:
            object.__setattr__(self, "collate", "stack")


@dataclass(frozen=True)
class Bytes(Field):
    """Bytes as they are. The rest: see `gpupipe.Field`."""

    usual: ClassVar[Usual] = "list"
    empty: ClassVar[Any] = b""


@dataclass(frozen=True)
class Key(Field):
    """The sample's name in its source, a string: a path below the root, a key in a shard. It lies in no file, and has
    no source or folder. The rest: see `gpupipe.Field`."""

    usual: ClassVar[Usual] = "list"


@dataclass(frozen=True)
class Index(Field):
    """The sample's number in its source, int64. It has no source or folder, either. The rest: see `gpupipe.Field`."""
