"""A recipe: the operations on an image in their order, and the form in which the batch comes out; several for views."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from textwrap import indent
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from gpupipe.errors import ConfigError
from gpupipe.recipe.augmentations import Augmenting, common_fill, walk
from gpupipe.recipe.checks import Fill, count, named, settle
from gpupipe.recipe.mixing import Mixing
from gpupipe.recipe.operations import Crop, Normalize, RandomErasing, RandomHorizontalFlip
from gpupipe.recipe.own import OnBatch, Own, PerImage, check_places
from gpupipe.recipe.several import GEOMETRY, CopyPaste, DetectionMixUp, Mosaic, Several, parts_of

__all__ = ["Decode", "Layout", "MultiCrop", "Operation", "OutputSpec", "Recipe", "Views", "dtype_name"]

Decode: TypeAlias = Literal["exact", "fast"]
Layout: TypeAlias = Literal["NCHW", "channels_last"]
Operation: TypeAlias = Crop | Several | RandomHorizontalFlip | Augmenting | Normalize | RandomErasing | Mixing | Own

DTYPES = ("float32", "float16", "bfloat16", "uint8")
MOST_VIEWS = 256
"""So many views of a sample can be drawn independently."""
MOST_OF_A_KIND = 15
"""So many augmentations of one kind can be drawn independently."""

# The order in which operations stand in a recipe: one crop, then at most one of each other kind, but any number of
# augmentations. Operations of the user's own stand between them, see `check_places`.
STAGES: tuple[tuple[type, ...], ...] = (
    (Crop,),
    (Mosaic,),
    (DetectionMixUp,),
    (RandomHorizontalFlip,),
    (CopyPaste,),
    (Augmenting,),
    (Normalize,),
    (RandomErasing,),
    get_args(Mixing),
)
AUGMENTING = STAGES.index((Augmenting,))

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class OutputSpec:
    """Shape, dtype and memory layout of one batch of images: shape is (N, 3, height, width) in either layout."""

    shape: tuple[int, int, int, int]
    dtype: str
    layout: str


def _stage(operation: object) -> int:
    for number, kinds in enumerate(STAGES):
        if isinstance(operation, kinds):
            return number
    known = ", ".join(kind.__name__ for kinds in STAGES for one in kinds for kind in one.__subclasses__() or [one])
    raise ConfigError(
        f"Recipe: {operation!r} is not an operation; known are {known}, and for a function or transform of your own "
        "PerImage and OnBatch"
    )


def dtype_name(dtype: Any) -> str:
    """The name of a dtype that batches can have, also of torch's; ConfigError for another."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(f"Recipe: dtype={dtype!r} must be one of {', '.join(DTYPES)} (a name or a torch dtype)")
    return name


@dataclass(frozen=True)
class Recipe:
    """What is done to an image, and the form in which the batch comes out.

    operations:   one crop, such as `RandomResizedCrop`; then, each only if wanted, `Mosaic`, `DetectionMixUp`,
                  `RandomHorizontalFlip`, `CopyPaste`, any number of augmentations (`RandAugment`, `ColorJitter`, ...),
                  `Normalize`, `RandomErasing`, and one of `MixUp`, `CutMix` and `MixUpOrCutMix`. Operations of your
                  own, `PerImage` and `OnBatch`, may stand anywhere between; see there.
    dtype:        "float32", "float16", "bfloat16" or "uint8" (or the torch dtype). Without `Normalize` float images
                  lie in [0, 1], as from torchvision's `ToTensor`; "uint8" images lie in [0, 255] and take none, and
                  neither erasing nor mixing.
    layout:       "NCHW" (contiguous) or "channels_last" (the same shape, torch's channels_last strides).
    exif_orientation: turn images upright by their EXIF tag; torchvision's ImageFolder does not, hence False.
    decode:       "exact", or "fast": an engine may let libjpeg shrink a JPEG by 2, 4 or 8 while it decodes, where the
                  box is at least that many times the output. The torch engine does; DALI decodes exactly.
    views:        how many views of each sample are made, each drawn by itself; 1 to 256. Views are not mixed.

    Raises ConfigError for operations that are unknown, repeated, out of order or don't go together, and for an unknown
    dtype or layout.
    """

    operations: tuple[Operation, ...]
    dtype: str = "float32"
    layout: Layout = "NCHW"
    exif_orientation: bool = False
    decode: Decode = "exact"
    views: int = 1

    @classmethod
    def from_torchvision(cls, transform: Any, collate_fn: Any = None) -> Recipe:
        """The recipe that does what torchvision's transform does, and its MixUp or CutMix in `collate_fn`.

        See `gpupipe.recipe.translation.torchvision`. Raises TranslationError for what has no counterpart.
        """
        from gpupipe.recipe.translation.torchvision import recipe_from_torchvision

        return recipe_from_torchvision(transform, collate_fn)

    @classmethod
    def from_timm(cls, transform: Any = None, *, mixup: Any = None, **arguments: Any) -> Recipe:
        """The recipe that does what timm's `create_transform` does with these arguments, or a transform that it made.

        mixup: a `Mixup` or `FastCollateMixup` of timm's. See `gpupipe.recipe.translation.timm`. Raises TranslationError
        for what has no counterpart. Of a model: `Recipe.from_timm(**timm.data.resolve_data_config(model=model))`.
        """
        from gpupipe.recipe.translation.timm import recipe_from_timm

        return recipe_from_timm(transform, mixup, arguments)

    def __post_init__(self) -> None:
        if not isinstance(self.operations, Iterable):
            raise ConfigError(f"Recipe: operations={self.operations!r} must be a tuple of operations; put it in ( , )")
        object.__setattr__(self, "operations", tuple(self.operations))
        object.__setattr__(self, "dtype", dtype_name(self.dtype))
        settle(self, layout=(named, *get_args(Layout)), decode=(named, *get_args(Decode)), views=(count, 1, MOST_VIEWS))
        self._check_order()
        self._check_augmentations()
        self._check_combination()

    def _check_order(self) -> None:
        stages = [_stage(operation) for operation in self.operations if not isinstance(operation, Own)]
        single = [stage for stage in stages if stage != AUGMENTING]
        if not stages or stages[0] != 0 or stages != sorted(stages) or len(single) > len(set(single)):
            raise ConfigError(
                "Recipe: operations must be one crop, then at most one RandomHorizontalFlip, with a Mosaic and then a "
                "DetectionMixUp before and a CopyPaste behind, then any augmentations, then at most one Normalize, one "
                "RandomErasing and one of MixUp, CutMix and MixUpOrCutMix; "
                f"got {[type(operation).__name__ for operation in self.operations]}"
            )
        check_places(self.operations)

    def _check_augmentations(self) -> None:
        drawn = (*walk(self.augmentations), *self.own)
        kinds = Counter(type(operation).__name__ for operation in drawn)
        for kind, number in kinds.items():
            if number > MOST_OF_A_KIND:
                raise ConfigError(f"Recipe: {number} {kind} in one recipe; at most {MOST_OF_A_KIND} can be drawn")
        common_fill(self.augmentations)

    def _check_combination(self) -> None:
        if self.dtype == "uint8" and self.normalize is not None:
            raise ConfigError(
                "Recipe: dtype='uint8' can't hold normalized images; drop Normalize or take a float dtype"
            )
        for last in (self.erasing, self.mixing):
            if self.dtype == "uint8" and last is not None:
                name = type(last).__name__
                raise ConfigError(f"Recipe: {name} works on floats; drop it or take another dtype than 'uint8'")
        if self.mixing is not None and self.crop.varies:
            mixing, crop = type(self.mixing).__name__, type(self.crop).__name__
            raise ConfigError(f"Recipe: {mixing} mixes images of one size, but {crop} gives each its own; drop one")
        self._check_several()
        if self.mixing is not None and self.views > 1:
            name = type(self.mixing).__name__
            raise ConfigError(f"Recipe: {name} mixes one view of each sample, but views={self.views}; drop one of both")

    def _check_several(self) -> None:
        names = ", ".join(type(one).__name__ for one in self.several)
        if names and self.views > 1:
            raise ConfigError(f"Recipe: {names} makes one sample of several, but views={self.views}; drop one of both")
        if names and self.crop.varies:
            raise ConfigError(
                f"Recipe: {names} makes one image of several of one size, but {type(self.crop).__name__} gives each "
                "its own; drop one of both"
            )
        if names and self.before_crop.stop:
            raise ConfigError(
                f"Recipe: {names} takes images as they are stored, but {self.operations[0]} stands before the crop; "
                "move it behind, or leave one of both out"
            )
        if self.only(Mosaic) is not None and (self.crop.fill is None or self.crop.padding_mode != "constant"):
            raise ConfigError(
                f"Recipe: what no image of a Mosaic covers is the crop's fill, and {self.crop!r} does not pad with "
                "one; take a crop that does, as LetterBox(size)"
            )

    @property
    def several(self) -> tuple[Several, ...]:
        """What makes one sample of several."""
        return tuple(operation for operation in self.operations if isinstance(operation, Several))

    @property
    def parts(self) -> tuple[int, ...]:
        """The numbers of the parts that a sample can be made of, see `parts_of`."""
        return parts_of(self.several)

    @property
    def crop(self) -> Crop:
        """The crop, with which every recipe begins but for `before_crop`."""
        return next(operation for operation in self.operations if isinstance(operation, Crop))

    @property
    def flip(self) -> RandomHorizontalFlip | None:
        """The flip, where there is one."""
        return self.only(RandomHorizontalFlip)

    @property
    def augmentations(self) -> tuple[Augmenting, ...]:
        """What is done between flip and normalization, maybe nothing."""
        return tuple(operation for operation in self.operations if isinstance(operation, Augmenting))

    @property
    def own(self) -> tuple[Own, ...]:
        """The operations of the user's own."""
        return tuple(operation for operation in self.operations if isinstance(operation, Own))

    @property
    def whole(self) -> OnBatch | None:
        """The one at the end that takes the whole batch, where there is one."""
        last = self.operations[-1]
        return last if isinstance(last, OnBatch) and last.whole else None

    @property
    def before_crop(self) -> slice:
        """The places, in `operations`, of those that change whole images: all are `PerImage`."""
        return slice(0, self.operations.index(self.crop))

    @property
    def runs(self) -> tuple[slice, ...]:
        """The places of what is done to uint8 images behind crop and flip: of augmentations that follow each other, and
        of each operation of the user's own by itself."""
        first, end = (1 + self._last(GEOMETRY), self._floats)
        own = [at for at in range(first, end) if isinstance(self.operations[at], Own)]
        cuts = sorted({first, end, *own, *(at + 1 for at in own)})
        return tuple(slice(start, stop) for start, stop in pairwise(cuts))

    @property
    def on_floats(self) -> range:
        """The places of what is done to images in the dtype and layout in which they come out: of erasing, mixing, and
        `OnBatch` but for `whole`."""
        return range(self._floats + (self.normalize is not None), len(self.operations) - (self.whole is not None))

    @property
    def _floats(self) -> int:
        """The place of what brings images into their dtype, which is `Normalize` where there is one."""
        normalize = self.normalize
        if normalize is not None:
            return self.operations.index(normalize)
        return 1 + self._last(GEOMETRY | Augmenting | PerImage)

    def _last(self, kinds: Any) -> int:
        return max(at for at, operation in enumerate(self.operations) if isinstance(operation, kinds))

    @property
    def fill(self) -> Fill:
        """R, G and B of what augmentations leave empty; None for black."""
        return common_fill(self.augmentations)

    @property
    def normalize(self) -> Normalize | None:
        """The normalization, where there is one."""
        return self.only(Normalize)

    @property
    def erasing(self) -> RandomErasing | None:
        """The erasing, where there is one."""
        return self.only(RandomErasing)

    @property
    def mixing(self) -> Mixing | None:
        """The mixing, where there is one."""
        return next((operation for operation in self.operations if isinstance(operation, Mixing)), None)

    def only(self, kind: type[Kind]) -> Kind | None:
        """The operation of that kind, where there is one."""
        return next((operation for operation in self.operations if isinstance(operation, kind)), None)

    @property
    def statistics(self) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        """Mean and standard deviation to normalize with, for values in [0, 1]; 0 and 1 without `Normalize`."""
        normalize = self.normalize
        return (normalize.mean, normalize.std) if normalize else ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))

    @property
    def view_recipes(self) -> tuple[Recipe, ...]:
        """The recipe of each view, which has one view: itself, so many times as there are views."""
        return (replace(self, views=1),) * self.views

    def output_spec(self, batch_size: int) -> OutputSpec:
        """Shape, dtype and layout of a batch of `batch_size` images, of each view, which an `OnBatch` at the end may
        change; of a crop that varies with the largest height and width."""
        return OutputSpec((batch_size, 3, *self.crop.output_size), self.dtype, self.layout)

    @property
    def fingerprint(self) -> str:
        """16 hex digits that differ between recipes which draw differently; dtype, layout, normalization and decode
        may change when a run is resumed."""
        drawn = [repr(op) for op in self.operations if not isinstance(op, Normalize)]
        if self.own:  # what one does depends on whether it stands before or behind
            drawn = ["Normalize" if isinstance(op, Normalize) else repr(op) for op in self.operations]
        views = [f"views={self.views}"] if self.views > 1 else []
        text = "|".join([*drawn, f"exif_orientation={self.exif_orientation}", *views])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def __repr__(self) -> str:
        lines = [f"        {operation!r}," for operation in self.operations]
        settings = [
            f"    {field.name}={getattr(self, field.name)!r},"
            for field in fields(self)
            if field.name in ("dtype", "layout")
            or (field.name in ("exif_orientation", "decode", "views") and getattr(self, field.name) != field.default)
        ]
        return "\n".join(["Recipe(", "    (", *lines, "    ),", *settings, ")"])


Views: TypeAlias = tuple[Recipe, ...]
"""The recipe of each view of a sample, as `view_recipes` gives them: the same in dtype, layout, orientation, decode."""

SAME = ("dtype", "layout", "exif_orientation", "decode")


@dataclass(frozen=True)
class MultiCrop:
    """Views of each sample by several recipes, each of which makes as many as its `views` say.

    DINO's two sizes, for one (Caron et al. 2021, arXiv 2104.14294). The recipes have the same dtype, layout,
    exif_orientation and decode, together 256 views at most, and no mixing, else ConfigError.
    """

    recipes: tuple[Recipe, ...]

    def __post_init__(self) -> None:
        recipes = self.recipes
        if not isinstance(recipes, Sequence) or not recipes or not all(isinstance(r, Recipe) for r in recipes):
            raise ConfigError(f"MultiCrop: recipes={recipes!r} must be a tuple of one Recipe or more")
        object.__setattr__(self, "recipes", tuple(recipes))
        for field in SAME:
            values = [getattr(recipe, field) for recipe in recipes]
            if len(set(values)) > 1:
                raise ConfigError(f"MultiCrop: {field} must be the same in all recipes, but they have {values}")
        for recipe in recipes:
            if recipe.mixing is not None:
                raise ConfigError(f"MultiCrop: views are not mixed, but a recipe has {recipe.mixing!r}; drop that")
            if recipe.several:
                raise ConfigError(f"MultiCrop: {recipe.several[0]!r} makes one sample of several, not views; drop it")
            if recipe.whole is not None:
                raise ConfigError(f"MultiCrop: {recipe.whole} is one recipe's, but whole=True takes all views; drop it")
        if self.views > MOST_VIEWS:
            raise ConfigError(f"MultiCrop: {self.views} views together are too many; at most {MOST_VIEWS} can be drawn")

    @property
    def views(self) -> int:
        """How many views of each sample there are in all."""
        return sum(recipe.views for recipe in self.recipes)

    @property
    def view_recipes(self) -> Views:
        """The recipe of each view, which has one view, in the order of `recipes`."""
        return tuple(view for recipe in self.recipes for view in recipe.view_recipes)

    @property
    def fingerprint(self) -> str:
        """16 hex digits that differ where a `Recipe`'s would."""
        text = "|".join(["MultiCrop", *(recipe.fingerprint for recipe in self.recipes)])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def __repr__(self) -> str:
        recipes = ",\n".join(indent(repr(recipe), "        ") for recipe in self.recipes)
        return f"MultiCrop(\n    (\n{recipes},\n    ),\n)"
