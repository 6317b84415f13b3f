"""Loaders of any settings: the same samples, values and pixels by any ranks, from any step on, by either engine.

An input is the seed of the settings.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from images import encode, picture

import gpupipe
from fuzz.harness import Finding, Target
from fuzz.items import SEED, Items, seeds

SIDE = 16  # of what comes out, where the recipe has a size
CLASSES = 5
NEAR = 3.0  # levels of 0 to 255 in the mean of an image, between engines; in such small ones edges count for much
GEOMETRIC = ("image", "second", "mask", "boxes", "points", "classes")
"""Fields of which there are several in a batch where a recipe has several views."""
PIXELS = {"image", "second"}

Rows = list[dict[str, Any]]
"""The samples of a batch."""


@dataclass(frozen=True)
class Settings:
    """What all loaders that are compared have in common. batch_size: of the global batch; 0: the order's own."""

    data: Any
    recipe: Any
    fields: dict[str, gpupipe.Field]
    batch_size: int
    options: dict[str, Any]
    epoch: int

    @property
    def mixes(self) -> bool:
        return any(isinstance(recipe.operations[-1], MIXINGS) for recipe in recipes_of(self.recipe))

    def loader(self, rank: int = 0, ranks: int = 1, engine: str = "torch", workers: int = 0) -> gpupipe.Loader:
        loader = gpupipe.Loader(
            self.data,
            self.recipe,
            max(1, self.batch_size // ranks),
            fields=self.fields,
            rank=rank,
            world_size=ranks,
            engine=engine,
            device="cpu",
            num_workers=workers,
            **self.options,
        )
        loader.set_epoch(self.epoch)
        return loader


def sample(draw: random.Random, index: int) -> Any:
    """One of the dataset's, which few times is a bad one."""
    height, width = (draw.choice((1, 7, SIDE, 24, 40)) for _ in range(2))
    pixels = picture(height, width, index)
    objects = draw.randrange(4)
    corners = np.array([[draw.random() * width, draw.random() * height] for _ in range(2 * objects)]).reshape(-1, 2)
    ends = corners.reshape(-1, 2, 2)
    quality = {"quality": 90, "subsampling": draw.randrange(3)}
    image = pixels if draw.random() < 0.3 else encode(pixels, draw.choice(("JPEG", "JPEG", "PNG")), **quality)
    if draw.random() < 0.04:
        return draw.choice((OSError("lost"), {"label": 1}))
    return {
        "image": b"\xff\xd8\xff bad" if draw.random() < 0.04 else image,
        "label": index % CLASSES,
        "boxes": np.concatenate([ends.min(1), ends.max(1) + 1], axis=1).astype(np.float32),
        "classes": list(range(objects)),
        "points": corners.astype(np.float32),
        "mask": np.full((height, width), index, np.uint8),
        "text": f"text {index}\nanother",
        "second": picture(height, width, index + 1),
    } | ({"lacking": index} if draw.random() < 0.8 else {})


def recipes_of(recipe: Any) -> tuple[Any, ...]:
    return recipe.recipes if isinstance(recipe, gpupipe.MultiCrop) else (recipe,)


def recipe_of(draw: random.Random) -> Any:
    """Of any operations; some do not go with others, which is refused."""
    mixes, several = draw.random() < 0.2, draw.random() < 0.2
    crops = draw.choice((CROPS, CROPS, SIZED)) if not mixes and not several else CROPS[-3:] if several else CROPS
    operations = [draw.choice(crops)]
    if several:
        operations += draw.choice(SEVERAL)
    if draw.random() < 0.6:
        operations.append(gpupipe.RandomHorizontalFlip())
    operations += [draw.choice(AUGMENTATIONS) for _ in range(draw.choice((0, 0, 0, 1, 1, 2, 3)))]
    dtype = draw.choice(("float32", "bfloat16") if mixes else ("uint8", "uint8", "float32", "bfloat16"))
    if dtype != "uint8":
        operations.append(gpupipe.Normalize())
        if draw.random() < 0.4:
            operations.append(gpupipe.RandomErasing(0.6, value=draw.choice((0, "random"))))
    if mixes:
        operations.append(draw.choice(MIXINGS)(CLASSES, alike=draw.choice((1, 2))))
    layout = draw.choice(("NCHW", "channels_last"))
    views = 1 if mixes or several else draw.choice((1, 1, 1, 2, 3))
    recipe = gpupipe.Recipe(tuple(operations), dtype, layout, exif_orientation=draw.random() < 0.5, views=views)
    if mixes or several or draw.random() < 0.85:
        return recipe
    small = replace(recipe, operations=(gpupipe.RandomResizedCrop(8), *operations[1:]), views=draw.choice((1, 2)))
    return gpupipe.MultiCrop((recipe, small))


SIZED = (
    gpupipe.Resize((10, 12, 20), max_size=30),
    gpupipe.Resize(None, max_size=48),
    gpupipe.ResizeToSequence(4, 20),
    gpupipe.BucketCrop(((8, 20), (12, 12), (20, 8)), "random"),
)
CROPS = (
    gpupipe.RandomResizedCrop(SIDE),
    gpupipe.RandomResizedCrop((SIDE, 12), interpolation="random"),
    gpupipe.RandomCrop(SIDE, padding=4, padding_mode="edge"),
    gpupipe.MultiScaleCrop(SIDE),
    gpupipe.RandomIoUCrop(SIDE, zoom_out=(1, 2)),
    gpupipe.ResizeCenterCrop(SIDE, 20),
    gpupipe.RandomCrop(SIDE, resize=(14, 30), padding=2),
    gpupipe.ScaleJitter(SIDE),
    gpupipe.LetterBox(SIDE, 0),
)
SEVERAL: tuple[tuple[Any, ...], ...] = (
    (gpupipe.Mosaic(0.7),),
    (gpupipe.DetectionMixUp(0.6),),
    (gpupipe.Mosaic(), gpupipe.DetectionMixUp()),
)
MIXINGS = (gpupipe.MixUp, gpupipe.CutMix, gpupipe.MixUpOrCutMix)
AUGMENTATIONS = (
    gpupipe.ColorJitter(0.4, 0.4, 0.4, 0.1),
    gpupipe.RandAugment(fill=0),
    gpupipe.TrivialAugmentWide(fill=0),
    gpupipe.AugMix(fill=0),
    gpupipe.AutoAugment(fill=0),
    gpupipe.TimmRandAugment(9, 2, 0.5, fill=0),
    gpupipe.ThreeAugment(),
    gpupipe.GaussianBlur(3),
    gpupipe.GaussianNoise(),
    gpupipe.RandomGrayscale(0.5),
    gpupipe.RandomHSV(),
    gpupipe.RandomAffine(30, (0.1, 0.1), (0.5, 1.5), 10),
    gpupipe.RandomPerspective(),
    gpupipe.ElasticTransform(),
    gpupipe.RandomVerticalFlip(),
    gpupipe.CoarseDropout(),
    gpupipe.RandomApply((gpupipe.RandomInvert(), gpupipe.RandomRotation(20))),
    gpupipe.RandomChoice((gpupipe.RandomEqualize(), gpupipe.RandomGamma(), gpupipe.RandomPhotometricDistort())),
)


def fields_of(draw: random.Random, recipe: Any) -> dict[str, gpupipe.Field]:
    """With sizes of their own images and masks are listed."""
    first = recipes_of(recipe)[0]
    listed = "list" if first.crop.varies else None
    kinds = {
        "label": gpupipe.Scalar(),
        "boxes": gpupipe.Boxes(labels="classes"),
        "points": gpupipe.Points(outside=draw.choice(("drop", "clip", "keep"))),
        "mask": gpupipe.Mask(collate=listed),
        "text": gpupipe.Text(choose=draw.random() < 0.5),
        "second": gpupipe.Image(geometry=draw.choice((None, "image")), collate=listed),
        "lacking": draw.choice((gpupipe.Scalar(missing="skip"), gpupipe.Scalar(missing="default", default=-1))),
    }
    mixes, by_boxes = isinstance(first.operations[-1], MIXINGS), isinstance(first.crop, gpupipe.RandomIoUCrop)
    needed = {"label"} if mixes else {"boxes"} if by_boxes or first.several else set()
    left_out = {"boxes", "points", "mask"} if mixes else {"mask"} if first.several else set()
    rare = {"second", "lacking", *left_out}
    chosen = {
        name: kind
        for name, kind in kinds.items()
        if name in needed or draw.random() < (0.06 if name in left_out else 0.2 if name in rare else 0.5)
    }
    if "boxes" in chosen:
        chosen["classes"] = gpupipe.Array()
    return {"image": gpupipe.Image(collate=listed), **chosen, "key": gpupipe.Key(), "index": gpupipe.Index()}


def order_of(draw: random.Random, count: int, batch_size: int) -> Any:
    """An order of any kind, or None."""
    half = [count // 2, count - count // 2]
    made: tuple[Callable[[], Any], ...] = (
        lambda: None,
        lambda: gpupipe.Sequential(count),
        lambda: gpupipe.Shuffled(count),
        lambda: gpupipe.Repeated(gpupipe.Shuffled(count), draw.randint(1, 4), draw.choice((None, count))),
        lambda: gpupipe.VirtualEpochs(gpupipe.Shuffled(count), draw.randint(1, 2 * count)),
        lambda: gpupipe.BlockShuffled(half, draw.randint(1, count)),
        lambda: gpupipe.NodeBlocks(half, draw.choice((1, 2)), batch_size, draw.randint(1, 3)),
        lambda: gpupipe.Weighted(np.arange(count) + 1.0, draw.randint(1, 2 * count)),
        lambda: gpupipe.Weighted(np.arange(count) + 1.0, replacement=False),
        lambda: gpupipe.Stratified(np.arange(count) % draw.randint(1, 3), batch_size),
        lambda: gpupipe.Subset(draw.sample(range(count), draw.randint(1, count)), shuffle=draw.random() < 0.5),
        lambda: gpupipe.Buckets(np.arange(count) % draw.randint(1, 3), batch_size, draw.random() < 0.3),
        lambda: gpupipe.BudgetBatches(gpupipe.Shuffled(count), np.arange(count) % 5 + 1, 20, batch_size),
    )
    return draw.choice(made)()


def settings_of(draw: random.Random) -> Settings:
    count, batch_size = draw.randint(1, 24), draw.choice((1, 2, 3, 4, 4, 6, 8, 12))
    recipe = recipe_of(draw)
    order = order_of(draw, count, batch_size)
    options = {"seed": draw.choice((0, 1, 2**32 + 5)), "on_error": "skip", "max_bad": 10**6}
    if order is None:
        options["shuffle"] = draw.random() < 0.7
    if isinstance(order, gpupipe.Buckets | gpupipe.BudgetBatches):
        batch_size = 0
    else:
        options["drop_last"] = draw.random() < 0.3
    items = [sample(draw, index) for index in range(count)]
    data: Any = Items(items)
    epoch = draw.choice((0, 1, 7, 2**20))
    if order is None and not options["shuffle"] and draw.random() < 0.7:
        readable = [item for item in items if not isinstance(item, Exception)]  # at which a pass would end
        data = gpupipe.Stream(readable, draw.choice((0, 0, 3, 50)), draw.choice((None, None, 5, 2 * count)))
        options["shuffle"], epoch = None, epoch % 3  # a stream has to be read up to there
    elif order is None and draw.random() < 0.5:
        cut = draw.randint(1, count)
        parts = {"some": (Items(items[:cut]), draw.randint(1, 5)), "all": (data, [draw.randint(0, 5), 2])}
        data = gpupipe.Mixture(parts, draw.choice((None, count)))
    return Settings(
        data,
        recipe,
        fields_of(draw, recipe),
        batch_size,
        options | {"order": order},
        epoch,
    )


def batches(loader: gpupipe.Loader, settings: Settings) -> Iterator[Rows]:
    for batch in loader:
        made: Rows = [{} for _ in batch["index"]]
        for name, column in batch.items():
            several = settings.recipe.views > 1 and name in GEOMETRIC
            for row, one in enumerate(made):
                one[name] = tuple(view[row] for view in column) if several else column[row]
        yield made


def check_of(scratch: Path) -> Callable[[bytes], Hashable]:
    def check(data: bytes) -> Hashable:
        draw = random.Random(data)
        settings = settings_of(draw)
        known, states, bad = one_process(settings)
        begin = draw.randrange(len(states))
        state = json.loads(json.dumps(states[begin])) if begin < len(known) else None
        expected = known if state is None else known[begin:]
        several_ranks(draw, settings, state, expected)
        is_fixed = not settings.batch_size or settings.mixes or isinstance(settings.data, gpupipe.Stream)
        if state is not None and draw.random() < 0.2 and not is_fixed:
            another_batch(draw, settings, state, expected)
        if draw.randrange(6) == 0:
            with settings.loader(engine="dali") as loader:
                for step, (rows, there) in enumerate(zip(batches(loader, settings), known, strict=True)):
                    alike(rows, there, settings, f"by DALI at step {step}")
        return len(known), bad > 0

    return check


def one_process(settings: Settings) -> tuple[list[Rows], list[dict[str, Any]], int]:
    """All batches, the state before each and at the end, and how many samples are bad."""
    with settings.loader() as loader:
        known, states = [], [loader.state_dict()]
        for rows in batches(loader, settings):
            known.append(rows)
            states.append(loader.state_dict())
        return known, states, len(loader.bad_samples)


def several_ranks(draw: random.Random, settings: Settings, state: dict[str, Any] | None, expected: list[Rows]) -> None:
    """The same global batches, whose last one may end with padding."""
    ranks = draw.choice([ranks for ranks in range(1, 9) if not settings.batch_size % ranks])
    where = f"by {ranks} ranks, {'all of it' if state is None else state['position']}"
    parts = []
    for rank in range(ranks):
        with settings.loader(rank, ranks, workers=draw.choice((0, 0, 0, 0, 1))) as loader:
            if state is not None:
                loader.load_state_dict(state)
            parts.append(list(batches(loader, settings)))
    if {len(part) for part in parts} != {len(expected)}:
        raise Finding(f"{[len(part) for part in parts]} batches in the place of {len(expected)}, {where}")
    for step, rows in enumerate(expected):
        together = [row for part in parts for row in part[step]]
        compare(together[: len(rows)], rows, f"{where}, at step {step}")
        if len(together) - len(rows) >= ranks:
            raise Finding(f"{len(together)} rows in the place of {len(rows)}, {where}, at step {step}")


def another_batch(draw: random.Random, settings: Settings, state: dict[str, Any], expected: list[Rows]) -> None:
    """The same samples in batches of another size."""
    other = replace(settings, batch_size=draw.randint(1, 12))
    with other.loader() as loader:
        loader.load_state_dict(state, allow_new_global_batch=True)
        rows = [row for batch in batches(loader, other) for row in batch]
    known = [row for batch in expected for row in batch]
    if settings.options["drop_last"]:
        rows, known = rows[: len(known)], known[: len(rows)]
    compare(rows, known, f"in batches of {other.batch_size}, not {settings.batch_size}")


def compare(made: Rows, known: Rows, where: str) -> None:
    if len(made) != len(known):
        raise Finding(f"{len(made)} rows in the place of {len(known)}, {where}")
    for row, (own, there) in enumerate(zip(made, known, strict=True)):
        for name in there:
            if not equal(own[name], there[name]):
                raise Finding(f"another {name!r} in row {row}, sample {there['index']}, {where}")


def alike(made: Rows, known: Rows, settings: Settings, where: str) -> None:
    """The same, but for pixels that another decoder has made, of which augmentations may make anything."""
    compare(
        [{name: value for name, value in row.items() if name not in PIXELS} for row in made],
        [{name: value for name, value in row.items() if name not in PIXELS} for row in known],
        where,
    )
    first, *_ = recipes = recipes_of(settings.recipe)
    if any(isinstance(one, AUGMENTED) for recipe in recipes for one in recipe.operations):
        return
    scale = 1.0 if first.dtype == "uint8" else 255 * 0.226
    for row, (own, there) in enumerate(zip(made, known, strict=True)):
        for name in PIXELS & set(there):
            for some, other in zip(views_of(own[name]), views_of(there[name]), strict=True):
                if some.shape != other.shape or (some.float() - other.float()).abs().mean() * scale > NEAR:
                    raise Finding(f"other pixels of {name!r} in row {row}, sample {there['index']}, {where}")


AUGMENTED = tuple({type(one) for one in AUGMENTATIONS})


def views_of(image: Any) -> Sequence[torch.Tensor]:
    return image if isinstance(image, tuple) else (image,)


def equal(made: Any, known: Any) -> bool:
    if isinstance(known, tuple):
        return all(equal(*pair) for pair in zip(made, known, strict=True))
    if isinstance(known, torch.Tensor):
        return made.dtype == known.dtype and torch.equal(made, known)
    return bool(made == known)


TARGETS = [Target("loaders", seeds, check_of, lambda draw, data, others: draw.randbytes(SEED))]
