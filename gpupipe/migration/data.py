"""A DataLoader's dataset, transform and collate_fn: as a source and a recipe, or as the user wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpupipe.decode.items import Alone
from gpupipe.errors import ConfigError, TranslationError, unlinked
from gpupipe.migration.datasets import Files, check_depth, files_of
from gpupipe.migration.report import Line, described
from gpupipe.recipe import MultiCrop, Recipe
from gpupipe.recipe.translation.alike import views_like
from gpupipe.recipe.translation.code import names
from gpupipe.recipe.translation.collating import mixing_of

__all__ = ["Data", "data_of"]

ITS_ITEMS = "its items, as its __getitem__ makes them in the workers"
LISTED = "the files and labels that it has listed"
AS_WRITTEN = "runs as it is written"
BLUR = "; Pillow's blur, if it has one, becomes torchvision's, 0.6 levels apart in the mean"


@dataclass(frozen=True)
class Data:
    """What Loader gets, with other arguments that belong to it, and the lines of the report."""

    data: Any
    recipe: Recipe | MultiCrop | None
    lines: tuple[Line, ...]
    options: dict[str, Any] = field(default_factory=dict)


def data_of(
    dataset: Any, collate: Any, batch_size: int | None, worker_init_fn: Any, overrides: Mapping[str, Any]
) -> Data:
    """What becomes of a dataset. collate: the user's own, or None; batch_size: None without automatic batching."""
    name = f"{type(dataset).__name__} of {len(dataset)} samples"
    if overrides.get("recipe") is not None:
        return _with_recipe(dataset, name, collate, overrides)
    try:
        if "recipe" in overrides:
            raise TranslationError("the dataset", "recipe=None was passed", "leave it out")
        if batch_size is None:
            raise TranslationError("batch_size=None", "a recipe makes batches", "pass a batch_size to the DataLoader")
        if names(worker_init_fn, "dataset"):
            own = described(worker_init_fn)
            raise TranslationError(f"worker_init_fn {own}", "its code names the worker's dataset", "leave that out")
        files = files_of(dataset)
    except TranslationError as error:
        return _as_written(dataset, collate, batch_size, Line("dataset", name, ITS_ITEMS, unlinked(str(error))))
    part, was = "transform", ", ".join(dict.fromkeys(map(described, files.transforms)))
    lines = [Line("dataset", name, LISTED)]
    try:
        recipe = _recipe(files)
        lines.append(Line(part, was, described(recipe) + (BLUR if isinstance(recipe, MultiCrop) else "")))
        if collate is not None:
            part, was = "collate_fn", described(collate)
            mixing = mixing_of(collate)
            assert mixing is not None, collate
            if isinstance(recipe, MultiCrop):
                raise TranslationError(f"mixing of {recipe.views} views", "a recipe mixes one view", "leave it out")
            if batch_size % 2:
                raise TranslationError(f"batch_size={batch_size}", "a recipe mixes pairs", "pass an even one")
            recipe = replace(recipe, operations=(*recipe.operations, mixing))
            lines.append(Line(part, was, f"{described(mixing)}; a last batch that is not full stays unmixed"))
    except ConfigError as error:
        failed = Line(part, was, AS_WRITTEN, unlinked(str(error)))
        return _as_written(dataset, collate, batch_size, Line("dataset", name, ITS_ITEMS), failed)
    try:
        check_depth(dataset, files)  # last, as it may index the files
    except TranslationError as error:
        return _as_written(dataset, collate, batch_size, Line("dataset", name, ITS_ITEMS, unlinked(str(error))))
    if files.target_transform is not None:
        lines.append(Line("target_transform", described(files.target_transform), "called for each label"))
    if files.skips:
        lines.append(Line("bad files", "the dataset's next file instead", "the order's next instead: on_error='skip'"))
    return Data(files.source(dataset), recipe, tuple(lines), {"on_error": "skip"} if files.skips else {})


def _recipe(files: Files) -> Recipe | MultiCrop:
    recipes = [_read(transform) for transform in files.transforms]
    if any(recipe != recipes[0] for recipe in recipes):
        raise TranslationError("ConcatDataset", "its parts have different transforms", "pass each to a DataLoader")
    return recipes[0]


def _read(transform: Any) -> Recipe | MultiCrop:
    if transform is None:
        raise TranslationError("transform=None", "items are PIL images of any size", "pass a transform or recipe=")
    views = views_like(transform)
    if views:
        return MultiCrop(tuple(replace(Recipe.from_torchvision(one), views=count) for one, count in views))
    try:
        return Recipe.from_torchvision(transform)
    except TranslationError as error:
        if not error.operation.startswith("timm."):
            raise
    return Recipe.from_timm(transform)


def _as_written(dataset: Any, collate: Any, batch_size: int | None, *lines: Line) -> Data:
    if collate is not None and not any(line.part == "collate_fn" for line in lines):
        lines = (*lines, Line("collate_fn", described(collate), AS_WRITTEN))
    return Data(dataset, None, lines, {"collate_fn": Alone(collate) if batch_size is None else collate})


def _with_recipe(dataset: Any, name: str, collate: Any, overrides: Mapping[str, Any]) -> Data:
    """The recipe stands for the transform: it gets the files of what is files, else the dataset's items."""
    if collate is not None and "collate_fn" not in overrides:
        raise ConfigError(
            f"from_dataloader: the DataLoader's collate_fn, {described(collate)}, can't go with recipe=: each field "
            "has its own, as fields={'name': gpupipe.Array(collate=function)}; pass collate_fn=None to do without it"
        )
    recipe: Recipe | MultiCrop = overrides["recipe"]
    passed = Line("transform", "the dataset's", "the recipe that was passed")
    if isinstance(recipe, Recipe) and _has_images(dataset):
        line = Line("dataset", name, "its images as encoded files, turned upright as it turns them")
        return Data(dataset.with_format(None), recipe, (line, passed))
    try:
        if "fields" in overrides:
            raise TranslationError("the dataset", "fields= were passed", "leave them out")
        files = files_of(dataset)
        check_depth(dataset, files)
    except TranslationError as error:
        became = f"its items, to which the recipe is applied ({unlinked(str(error))})"
        return Data(dataset, recipe, (Line("dataset", name, became),))
    return Data(files.source(dataset), recipe, (Line("dataset", name, LISTED), passed))


def _has_images(dataset: Any) -> bool:
    """Whether it is a Hugging Face dataset with images."""
    if type(dataset).__module__ != "datasets.arrow_dataset":
        return False
    return any(type(feature).__name__ == "Image" for feature in dataset.features.values())
