"""timm's `create_loader` with a Loader in it: its train.py and validate.py run with that one import changed."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed
from timm import data as timm
from timm.data.loader import PrefetchLoader, fast_collate

from gpupipe.batch import Array, Image
from gpupipe.errors import ConfigError, TranslationError
from gpupipe.loader.loader import Loader
from gpupipe.migration.dataloader import from_dataloader
from gpupipe.migration.datasets import check_depth, files_of
from gpupipe.migration.report import Translation, described
from gpupipe.recipe import PerImage, Recipe
from gpupipe.recipe.translation.timm import recipe_from_timm, recipe_in_part

__all__ = ["create_loader"]

log = logging.getLogger("gpupipe")

SIGNATURE = inspect.signature(timm.create_loader)
OF_TRANSFORM = SIGNATURE.parameters.keys() & inspect.signature(timm.create_transform).parameters.keys()


@functools.wraps(timm.create_loader)
def create_loader(*arguments: Any, **options: Any) -> Any:
    """A Loader in the place of what timm's `create_loader` returns; arguments and batches are the same.

    timm's builds its DataLoader, whose place `gpupipe.from_dataloader` takes: `print(loader.translation)`. What the
    arguments do to images and to batches becomes a recipe (`Recipe.from_timm`). What of it has no counterpart stays
    timm's own, and a warning names it and what to pass in its place: augmentations in a `PerImage` of the recipe; for
    all else timm's transform, collate_fn and prefetcher run, in gpupipe's workers and order, at timm's speed.

    Differs: on several ranks no sample comes twice in a training epoch, where DistributedSampler lets some, and draws
    follow from rank 0's torch.initial_seed(). In evaluation as many rows are padding as timm's
    OrderedDistributedSampler adds, of the same samples. worker_seeding has no effect on a recipe. An image that can't
    be decoded is replaced, as timm's ImageDataset does it, but by the next one of the epoch's order; beside a PerImage
    it is an error.

    Raises ConfigError for datasets that are read in an order of their own (TFDS, WDS, hfids), and for images of several
    sizes (input_size_choices).
    """
    bound = SIGNATURE.bind(*arguments, **options)
    bound.apply_defaults()
    given = SimpleNamespace(**bound.arguments)
    _refuse(given)
    persistent = bool(given.num_workers) and bool(given.persistent_workers or given.use_multi_epochs_loader)
    shared: dict[str, Any] = {"persistent_workers": persistent, "pin_memory": given.pin_memory or None, **_seed(given)}
    given.use_multi_epochs_loader = False  # workers live on
    try:
        recipe, dataset = _recipe(given), _files(given.dataset)
    except TranslationError as error:
        log.warning("gpupipe: create_loader: %s. So timm's own transform and collate_fn run", error)
        return _as_it_is(given, shared, str(error))
    if given.worker_seeding != "all":
        log.warning("gpupipe: create_loader: worker_seeding=%r has no effect on a recipe", given.worker_seeding)
    own = any(isinstance(operation, PerImage) for operation in recipe.operations)
    theirs = _dataloader(given, dataset)
    if dataset is not given.dataset:
        dataset.transform = _unchanged
    if isinstance(dataset, timm.ImageDataset):
        shared["on_error"] = "skip" if not own else "raise"  # what timm's operations raise is no bad image
        if dataset.additional_features is not None:
            shared["fields"] = {"image": Image("0"), "label": Array("1")}
    device = given.device if given.use_prefetcher else "cpu"
    shared |= {"recipe": recipe, "device": device, "collate_fn": None, "worker_init_fn": None}
    loader = from_dataloader(theirs, **shared)
    _report(loader, transform={"was": "create_transform's, of the arguments", "now": described(recipe)})
    if recipe.mixing is not None:
        loader.mixup_enabled = given.collate_fn.mixup_enabled
    return loader


def _refuse(given: SimpleNamespace) -> None:
    """Raise ConfigError for what can't be had from a Loader."""
    if isinstance(given.dataset, torch.utils.data.IterableDataset):
        reader = type(getattr(given.dataset, "reader", given.dataset)).__name__
        raise ConfigError(
            f"create_loader: the dataset ({reader}) is read in an order of its own, but here samples are asked for by "
            "their number; take timm's own create_loader, give WebDataset shards to gpupipe.Loader, or read the data "
            "from folders, tar files or as 'hfds/...'"
        )
    if given.input_size_choices is not None:
        raise ConfigError(
            f"create_loader: input_size_choices={given.input_size_choices}: images of a Loader have one size; leave it "
            "out (train.py: --train-img-sizes), or take timm's own create_loader"
        )


def _seed(given: SimpleNamespace) -> dict[str, int]:
    """That of rank 0, where ranks share an epoch that is drawn; else it is found in the DataLoader."""
    if not (given.is_training and given.distributed and torch.distributed.is_initialized()):
        return {}
    seeds = [torch.initial_seed() % 2**64]
    torch.distributed.broadcast_object_list(seeds, src=0)
    return {"seed": seeds[0]}


def _recipe(given: SimpleNamespace) -> Recipe:
    """What becomes of an image and of a batch. Raises TranslationError."""
    if given.num_aug_splits:
        reason, alternative = "each sample would be several images of a batch", "pass num_aug_splits=0"
        raise TranslationError(f"num_aug_splits={given.num_aug_splits}", reason, alternative)
    mixup = None if given.collate_fn in (None, fast_collate, torch.utils.data.default_collate) else given.collate_fn
    if mixup is not None and not (isinstance(mixup, timm.FastCollateMixup) and given.use_prefetcher):
        alternative = "leave it out, and change the batch in the training loop"
        raise TranslationError(f"collate_fn={mixup!r}", "a recipe's batches have none", alternative)
    if mixup is not None and given.batch_size % 2:
        raise TranslationError(f"batch_size={given.batch_size}", "the recipe mixes pairs", "pass an even one")
    mixing = copy.copy(mixup)
    if mixing is not None:
        mixing.mixup_enabled = True
    arguments = {name: getattr(given, name) for name in OF_TRANSFORM} | {"re_num_splits": 2 if given.re_split else 0}
    try:
        recipe = recipe_from_timm(None, mixing, arguments)
    except TranslationError as error:
        recipe, names = recipe_in_part(mixing, arguments)
        log.warning("gpupipe: create_loader: %s. So timm's own %s runs, image by image", error, names)
    dtype = torch.float16 if given.fp16 else given.img_dtype or torch.float32
    return Recipe(recipe.operations, dtype=str(dtype)) if given.use_prefetcher else recipe


def _files(dataset: Any) -> Any:
    """The dataset, if it is a list of files; else a copy that is to give images as they are read. TranslationError."""
    try:
        files = files_of(dataset)
    except TranslationError:
        if not hasattr(dataset, "transform"):
            raise
    else:
        check_depth(dataset, files)
        return dataset
    own = copy.copy(dataset)
    if isinstance(dataset, timm.ImageDataset):
        if dataset.input_img_mode not in ("", None, "RGB"):
            said = f"input_img_mode={dataset.input_img_mode!r}"
            raise TranslationError(said, "images are RGB", "pass input_img_mode='RGB'")
        own.load_bytes = True
    return own


def _unchanged(image: Any) -> Any:
    """In the place of a transform that a dataset may call without asking whether there is one."""
    return image


def _dataloader(given: SimpleNamespace, dataset: Any) -> Any:
    """timm's, of which nothing is iterated, without the prefetcher."""
    made = timm.create_loader(**vars(given) | {"dataset": dataset})
    return made.loader if given.use_prefetcher else made


class _Prefetched(PrefetchLoader):  # type: ignore[misc]  # timm has no types
    """timm's prefetcher of a Loader that runs timm's transform and collate_fn; all else is the Loader's."""

    def __init__(self, theirs: PrefetchLoader, loader: Loader) -> None:
        self.__dict__.update(vars(theirs), loader=loader, collate_fn=theirs.loader.collate_fn)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["loader"], name)

    @property
    def mixup_enabled(self) -> bool:
        """Whether samples are mixed; a change holds from the next iteration on."""
        return getattr(self.collate_fn, "mixup_enabled", False)

    @mixup_enabled.setter
    def mixup_enabled(self, enabled: bool) -> None:
        self.collate_fn.mixup_enabled = enabled


def _report(loader: Loader, **parts: dict[str, str]) -> None:
    """Let its translation say that of the parts, and nothing of overrides, which no one has passed."""
    lines = [replace(line, **parts.get(line.part, {})) for line in loader.translation.lines if line.part != "overrides"]
    loader.translation = Translation(tuple(lines))


def _as_it_is(given: SimpleNamespace, shared: dict[str, Any], why: str) -> Any:
    """timm's transform, collate_fn and prefetcher, around a Loader without a recipe."""
    theirs = timm.create_loader(**vars(given))
    inner = theirs.loader if given.use_prefetcher else theirs
    if isinstance(inner.collate_fn, timm.FastCollateMixup):
        shared["persistent_workers"] = False  # workers that live on would not see it switched off
    made = from_dataloader(inner, recipe=None, **shared)
    _report(made, dataset={"why": why})
    return _Prefetched(theirs, made) if given.use_prefetcher else made
