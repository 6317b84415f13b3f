"""Mosaics, detection's MixUp and pasted objects against slow references by the arithmetic of Ultralytics and of
torchvision's detection reference, which are given the same numbers."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from engines import ENGINES
from images import encode, picture
from numpy.typing import NDArray
from PIL import Image as PillowImage
from torchvision.ops import masks_to_boxes
from torchvision.transforms import functional  # as the reference; v2 blurs a mask of bool to another

import gpupipe
from gpupipe import Array, Boxes, Image, Key, Mask, Points, Schema
from gpupipe.batch import Columns, Coming, Images
from gpupipe.decode import merging
from gpupipe.decode.pixels import resized_by_pillow
from gpupipe.errors import ConfigError, SampleError
from gpupipe.kernels.philox import uniform
from gpupipe.plan import cropping, follow_boxes, follow_mask, partners
from gpupipe.plan.elementary import symmetric_beta
from gpupipe.plan.stream import BLEND, FLIP, MOSAIC, PARTNER, PASTE, Stream, below
from gpupipe.recipe import (
    CopyPaste,
    DetectionMixUp,
    LetterBox,
    Mosaic,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    Recipe,
    ResizeCenterCrop,
    ScaleJitter,
    check_fields,
)
from gpupipe.sources import Source
from gpupipe.tools.showing.cards import cards_of
from gpupipe.tools.showing.shown import read_shown

SAMPLES, SIDE, SEED = 24, 48, 5
BAD = 22
KINDS = {"boxes", "label", "mask", "points"}


@cache
def sample(index: int) -> dict[str, Any]:
    """An image with up to four objects, rectangles that do not overlap, and what belongs to it."""
    rng = np.random.default_rng(index)
    height, width = (int(side) for side in rng.integers(30, 90, 2))
    mask = np.zeros((height, width), np.uint8)
    boxes = []
    for number in range(index % 5):
        top, left = int(rng.integers(0, height // 2)), number * width // 5
        box = (left, top, left + int(rng.integers(2, width // 5)), top + int(rng.integers(2, height // 2)))
        mask[box[1] : box[3], box[0] : box[2]] = number + 1
        boxes.append(box)
    corners = np.array(boxes, np.float32).reshape(-1, 4)
    return {
        "image": picture(height, width, index),
        "boxes": corners,
        "label": 100 * index + np.arange(len(boxes)),
        "mask": mask,
        "points": corners[:, :2],
    }


class Objects(Source):
    """Those samples; pass the fields that are wanted."""

    fingerprint = "objects"

    def __init__(self, *names: str, bad: int = -1, cut: int = -1, **boxes: Any) -> None:
        kinds = {
            "image": Image(),
            "boxes": Boxes(labels="label", **boxes),
            "label": Array(),
            "mask": Mask(numbers="boxes"),
            "points": Points(),
            "twin": Image(geometry="image"),
            "other": Image(),
            "key": Key(),
        }
        self.fields = Schema({name: kinds[name] for name in ("image", "boxes", "label", *names)})
        self.bad, self.cut = bad, cut
        self.asked: list[int] = []

    def __len__(self) -> int:
        return SAMPLES

    def key(self, index: int) -> str:
        return f"key {index}"

    def fetch(self, indices: NDArray[np.int64]) -> Columns:
        rows = indices.tolist()
        self.asked += rows
        if self.bad in rows:
            raise SampleError(self.bad, self.location(self.bad), "it is broken")
        columns: Columns = {name: [sample(row)[name] for row in rows] for name in KINDS & self.fields.keys()}
        for name in self.fields.images:
            files = [encode(sample(row)["image"], "TIFF" if row % 5 == 0 else "PNG") for row in rows]  # not for DALI
            cut = [file[: len(file) // (2 if row == self.cut else 1)] for row, file in zip(rows, files, strict=True)]
            columns[name] = Images([np.frombuffer(file, np.uint8) for file in cut])
        return columns | {"key": [f"key {row}" for row in rows]}


def epoch(recipe: Recipe, source: Source, batch: int = 4, **options: Any) -> list[dict[str, Any]]:
    """The samples of an epoch, by their places in it."""
    options = {"engine": "torch", "num_workers": 0, "device": "cpu"} | options
    with gpupipe.Loader(source, recipe, batch, seed=SEED, **options) as loader:
        return [{name: column[row] for name, column in made.items()} for made in loader for row in range(batch)]


# Slow references, for one position at a time. Samples are in their own order, so positions are indices.


def words(position: int, part: int, operation: int) -> NDArray[np.uint64]:
    return Stream(SEED, 0, np.array([position]), part).words(operation)[:, 0]


def partner(position: int, part: int) -> int:
    if part == 0:
        return position
    high, low = (int(word) for word in words(position, part, PARTNER)[:2])
    return (high << 32 | low) % SAMPLES


def resized(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    return np.asarray(PillowImage.fromarray(pixels).resize(size, PillowImage.Resampling.BILINEAR))


Made = tuple[Any, NDArray[Any], NDArray[Any]]


def ultralytics_mosaic(position: int, lead: int, scale: float = 0, translate: float = 0, least: float = 1) -> Made:
    """Image, boxes and labels: four images on a canvas of twice the side, then scaled and shifted."""
    s = SIDE
    drawn, more = uniform(words(position, lead, MOSAIC)), uniform(words(position, lead, MOSAIC | 1))
    yc, xc = (int(s / 2 + share * s) for share in drawn[:2])
    canvas = np.full((2 * s, 2 * s, 3), 114, np.uint8)
    boxes, labels = [], []
    for quadrant in range(4):
        one = sample(partner(position, lead + quadrant))
        h0, w0 = one["image"].shape[:2]
        r = s / max(h0, w0)
        w, h = min(math.ceil(w0 * r), s), min(math.ceil(h0 * r), s)
        tile = resized(one["image"], (w, h))
        x1, y1 = (xc - w if quadrant in (0, 2) else xc), (yc - h if quadrant in (0, 1) else yc)
        y0, x0 = max(y1, 0), max(x1, 0)
        canvas[y0 : y1 + h, x0 : x1 + w] = tile[y0 - y1 : 2 * s - y1, x0 - x1 : 2 * s - x1]
        boxes.append(one["boxes"] * ([w / w0, h / h0] * 2) + [x1, y1, x1, y1])
        labels.append(one["label"])
    corners = np.concatenate(boxes).clip(0, 2 * s)
    z = 1 - scale + 2 * scale * drawn[2]
    t = [(0.5 - translate + 2 * translate * share) * s for share in (drawn[3], more[0])]  # across, down
    corners = ((corners.reshape(-1, 2, 2) - s) * z + t).reshape(-1, 4).clip(0, s)
    kept = (corners[:, 2:] - corners[:, :2]).prod(axis=1) >= least
    image = canvas[s // 2 : s // 2 + s, s // 2 : s // 2 + s]
    if scale or translate:
        affine = (1 / z, 0, s - t[0] / z, 0, 1 / z, s - t[1] / z)
        how: Any = dict(resample=PillowImage.Resampling.BILINEAR, fillcolor=(114, 114, 114))
        image = np.asarray(PillowImage.fromarray(canvas).transform((s, s), PillowImage.Transform.AFFINE, affine, **how))
    return image, corners[kept], np.concatenate(labels)[kept]


def mirrored(image: Any, boxes: NDArray[Any]) -> tuple[Any, NDArray[Any]]:
    boxes = np.stack([SIDE - boxes[:, 2], boxes[:, 1], SIDE - boxes[:, 0], boxes[:, 3]], axis=1)
    return image[:, ::-1], boxes


@pytest.mark.parametrize("options", ENGINES)
def test_mosaics_are_those_of_ultralytics(options: dict[str, Any]) -> None:
    recipe = Recipe(
        (LetterBox(SIDE), Mosaic(scale=(1, 1), translate=0), RandomHorizontalFlip()), "uint8", "channels_last"
    )
    flipped = 0
    for position, made in enumerate(epoch(recipe, Objects(), **options)):
        image, boxes, labels = ultralytics_mosaic(position, 0)
        if uniform(words(position, 0, FLIP))[0] < 0.5:
            image, boxes = mirrored(image, boxes)
            flipped += 1
        np.testing.assert_allclose(made["boxes"], boxes, atol=1e-3)
        np.testing.assert_array_equal(made["label"], labels)
        far = np.abs(made["image"].permute(1, 2, 0).numpy().astype(int) - image)
        assert far.max() <= (1 if options["engine"] == "torch" else 2)  # Pillow may go along columns first
    assert 0 < flipped < SAMPLES


def test_a_mosaic_is_scaled_and_shifted_as_by_ultralytics() -> None:
    recipe = Recipe((LetterBox(SIDE), Mosaic(scale=(0.5, 1.5), translate=0.1)), "uint8")
    compared = 0
    for position, made in enumerate(epoch(recipe, Objects(min_area=0))):
        image, boxes, labels = ultralytics_mosaic(position, 0, 0.5, 0.1, least=0)
        assert np.abs(made["image"].permute(1, 2, 0).numpy().astype(int) - image).mean() < 8  # resized once, not twice
        np.testing.assert_array_equal(made["label"], labels)
        seen = (boxes[:, 2:] - boxes[:, :2] > 0).all(axis=1)
        np.testing.assert_allclose(made["boxes"][seen], boxes[seen], atol=1.5)  # each image lies at whole pixels
        compared += seen.sum()
    assert compared > 20


@pytest.mark.parametrize("options", [ENGINES[0], ENGINES[2]])
def test_blended_mosaics_are_those_of_ultralytics(options: dict[str, Any]) -> None:
    recipe = Recipe((LetterBox(SIDE), Mosaic(0.6, (1, 1), 0), DetectionMixUp(p=0.5)), "uint8", "channels_last")
    blended = plain = 0
    for position, made in enumerate(epoch(recipe, Objects(), **options)):

        def one(lead: int, position: int = position) -> Made:
            if uniform(words(position, lead, MOSAIC | 1))[1] < 0.6:
                return ultralytics_mosaic(position, lead)
            return letter_box(partner(position, lead))

        image, boxes, labels = one(0)
        if uniform(words(position, 0, BLEND))[0] < 0.5:
            other, more, others = one(4)
            stream = Stream(SEED, 0, np.array([position]))
            r = symmetric_beta(32, np.array([0]), lambda blocks, rows: stream.words(BLEND | 1)[:, None])[0]  # noqa: B023
            image = (image * r + other * (1 - r)).astype(np.uint8)
            boxes, labels = np.concatenate([boxes, more]), np.concatenate([labels, others])
            blended += 1
        plain += uniform(words(position, 0, MOSAIC | 1))[1] >= 0.6
        np.testing.assert_allclose(made["boxes"], boxes, atol=1e-3)
        np.testing.assert_array_equal(made["label"], labels)
        assert np.abs(made["image"].permute(1, 2, 0).numpy().astype(int) - image).max() <= 2
    assert 0 < blended < SAMPLES
    assert 0 < plain < SAMPLES


@cache
def letter_box(index: int) -> Made:
    recipe = Recipe((LetterBox(SIDE),), "uint8", "channels_last")
    made = epoch(recipe, Objects(), 1, order=gpupipe.Subset([index]))[0]
    return made["image"].permute(1, 2, 0).numpy(), made["boxes"].numpy(), made["label"].numpy()


def crops(position: int, part: int, recipe: Recipe) -> dict[str, Any]:
    """One part cropped and mirrored alone: the image, masks of each object by torchvision, boxes and labels."""
    one = sample(partner(position, part))
    height, width = one["mask"].shape
    own = cropping(recipe, SEED, 0, np.array([position]), np.array([height]), np.array([width]), np.array([part]))
    image, mask = np.empty((SIDE, SIDE, 3), np.uint8), np.empty((SIDE, SIDE), np.uint8)
    image[:] = resized_by_pillow(PillowImage.fromarray(one["image"]), own)
    follow_mask(one["mask"], own, 0, mask, 0)
    boxes, kept = follow_boxes(one["boxes"], "xyxy", own, 0, 1.0)
    masks = np.array([mask == number for number in 1 + np.flatnonzero(kept)]).reshape(-1, SIDE, SIDE)
    return {"image": image, "masks": torch.from_numpy(masks), "boxes": boxes, "labels": one["label"][kept]}


@pytest.mark.parametrize("options", [ENGINES[0], ENGINES[2]])
@pytest.mark.parametrize("blending", [False, True])
def test_objects_are_pasted_as_by_torchvisions_reference(blending: bool, options: dict[str, Any]) -> None:
    crop, flip = ScaleJitter(SIDE, (0.5, 2.0)), RandomHorizontalFlip()
    recipe = Recipe((crop, flip, CopyPaste(0.8, blending)), "uint8", "channels_last")
    pasted = dropped = 0
    for position, made in enumerate(epoch(recipe, Objects("mask"), **options)):
        own = crops(position, 0, recipe)
        image, masks, labels, boxes = torch.from_numpy(own["image"]), own["masks"], own["labels"], own["boxes"]
        other = crops(position, 8, recipe)
        count = len(other["labels"])
        if uniform(words(position, 0, PASTE))[0] < 0.8 and count:
            drawn = [below(words(position, 0, PASTE | 1 + block), count) for block in range(2)]
            selection = torch.from_numpy(np.concatenate(drawn)[:count]).unique()
            more = other["masks"][selection]
            alpha = more.sum(dim=0) > 0
            if blending:
                alpha = functional.gaussian_blur(alpha[None], kernel_size=[5, 5], sigma=[2.0])[0]
            image = image * ~alpha[..., None] + torch.from_numpy(other["image"]) * alpha[..., None]
            masks = masks * ~alpha
            left = masks.sum((-1, -2)) > 0
            masks = torch.cat([masks[left], more])
            boxes = masks_to_boxes(masks[: left.sum()]) + torch.tensor([0, 0, 1, 1])
            boxes = np.concatenate([boxes, other["boxes"][selection.numpy()]])
            labels = np.concatenate([labels[left.numpy()], other["labels"][selection.numpy()]])
            pasted += 1
            dropped += int((~left).sum())
        numbers = torch.arange(1, 1 + len(masks), dtype=torch.uint8)[:, None, None]
        np.testing.assert_allclose(made["boxes"], boxes, atol=1e-3)
        np.testing.assert_array_equal(made["label"], labels)
        assert torch.equal(made["mask"], (masks * numbers).sum(dim=0).to(torch.uint8))
        assert (made["image"].permute(1, 2, 0).int() - image.int()).abs().max() <= 3
    assert 2 < pasted < SAMPLES
    assert dropped


EVERYTHING = (LetterBox(SIDE), Mosaic(0.7), RandomHorizontalFlip(), CopyPaste(0.7), RandomRotation(20))


def test_ranks_workers_and_resumes_agree() -> None:
    recipe = Recipe(EVERYTHING, "uint8")
    fields = ("mask", "key")
    options: dict[str, Any] = {"shuffle": True}
    truth = epoch(recipe, Objects(*fields), 8, **options)
    assert len({len(one["label"]) for one in truth}) > 5
    ranks = [epoch(recipe, Objects(*fields), 4, rank=rank, world_size=2, **options) for rank in (0, 1)]
    with gpupipe.Loader(Objects(*fields), recipe, 8, seed=SEED, device="cpu", num_workers=0, **options) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with gpupipe.Loader(Objects(*fields), recipe, 8, seed=SEED, device="cpu", num_workers=2, **options) as loader:
        loader.load_state_dict(state)
        resumed = [{name: column[row] for name, column in made.items()} for made in loader for row in range(8)]
    others = [
        (0, [one for step in range(3) for half in ranks for one in half[4 * step : 4 * step + 4]]),
        (8, resumed),
        (0, epoch(recipe, Objects(*fields), 8, **options | {"engine": "dali", "num_workers": 3})),
    ]
    for first, other in others:
        assert len(other) == SAMPLES - first
        for ours, theirs in zip(truth[first:], other, strict=True):
            assert ours["key"] == theirs["key"]
            for name in ("boxes", "label", "mask"):
                assert torch.equal(ours[name], theirs[name])
            assert (ours["image"].float() - theirs["image"].float()).abs().mean() <= 1


def test_masks_number_the_boxes_that_are_left() -> None:
    """Whatever is cut, turned and covered: each number's pixels lie in its box, which all others but for those that are
    turned touch."""
    for operations, slack in (
        (EVERYTHING[:-1], 1.5),
        (EVERYTHING, 30.0),
        ((RandomResizedCrop(SIDE, (0.1, 0.3)),), 1.5),
    ):
        for one in epoch(Recipe(operations, "uint8"), Objects("mask")):
            mask, boxes = one["mask"].numpy(), one["boxes"].numpy()
            assert mask.max(initial=0) <= len(boxes)
            for number in np.unique(mask[mask > 0]):
                down, across = np.nonzero(mask == number)
                left, top, right, bottom = boxes[number - 1]
                assert left - 1.5 <= across.min() <= left + slack
                assert top - 1.5 <= down.min() <= top + slack
                assert right - slack <= across.max() + 1 <= right + 1.5
                assert bottom - slack <= down.max() + 1 <= bottom + 1.5


def test_points_and_masks_lie_where_the_boxes_do() -> None:
    recipe = Recipe((LetterBox(SIDE), Mosaic(), RandomHorizontalFlip(0)), "uint8")
    for one in epoch(recipe, Objects("mask", "points", min_area=0)):
        corners = one["boxes"][:, :2].numpy()
        for point in one["points"].numpy():
            assert np.abs(corners - point).sum(axis=1).min() < 1e-3


def test_other_fields_are_the_samples_own() -> None:
    recipe = Recipe((LetterBox(SIDE), Mosaic(), DetectionMixUp()), "uint8")
    assert [one["key"] for one in epoch(recipe, Objects("key"))] == [f"key {index}" for index in range(SAMPLES)]


def test_partners_come_from_the_order() -> None:
    """From a subset none beyond it, from the data as a whole each about as often."""
    recipe = Recipe((LetterBox(SIDE), Mosaic(), DetectionMixUp()))
    drawn = partners(recipe, 1, 2, np.arange(4000), 10)
    assert drawn.shape == (4000, 7)
    assert np.ptp(np.bincount(drawn.reshape(-1), minlength=10)) < 300
    source = Objects()
    epoch(recipe, source, 5, order=gpupipe.Subset(range(4, 9)))
    assert {*source.asked} == {*range(4, 9)}


def test_a_part_draws_the_same_whatever_the_others() -> None:
    several = Recipe((LetterBox(SIDE), Mosaic(0.5), DetectionMixUp(0.5)))
    sometimes = partners(several, 1, 2, np.arange(100), 50)
    always = partners(Recipe((LetterBox(SIDE), Mosaic(), DetectionMixUp())), 1, 2, np.arange(100), 50)
    there = sometimes >= 0
    assert 0.3 < there.mean() < 0.5
    assert (sometimes[there] == always[there]).all()
    rows = np.array([3, 90, 41])
    assert (partners(several, 1, 2, rows, 50) == sometimes[rows]).all()


def test_what_stands_in_for_several_bad_parts_does_not_depend_on_which_were_met_before() -> None:
    class Broken(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"image": b"" if index % 3 == 0 else sample(index)["image"], "points": np.ones((1, 2))}

    fields = {"image": Image("image"), "points": Points("points", outside="keep")}
    options: dict[str, Any] = {"fields": fields, "on_error": "skip", "seed": SEED, "shuffle": True}
    options |= {"engine": "torch", "device": "cpu", "num_workers": 0}
    recipe = Recipe((LetterBox(SIDE), Mosaic()), "uint8")
    with gpupipe.Loader(Broken(), recipe, 4, **options) as loader:
        whole = [batch["image"] for batch in loader]
    for rank in (0, 1):
        with gpupipe.Loader(Broken(), recipe, 2, rank=rank, world_size=2, **options) as loader:
            for batch, images in zip(loader, whole, strict=True):
                assert torch.equal(batch["image"], images[2 * rank : 2 * rank + 2])


@pytest.mark.parametrize("options", [ENGINES[0], ENGINES[2]])
@pytest.mark.parametrize("how", ["bad", "cut"])
def test_a_bad_partner_is_a_bad_sample(how: str, options: dict[str, Any]) -> None:
    recipe = Recipe((LetterBox(SIDE), Mosaic()), "uint8")
    first = next(position for position in range(SAMPLES) if BAD in [partner(position, part) for part in range(4)])
    assert first < BAD
    settings = {"num_workers": 0, "engine": "torch"} | options
    with gpupipe.Loader(Objects(**{how: BAD}), recipe, 1, seed=SEED, device="cpu", **settings) as loader:
        batches = iter(loader)
        for _ in range(first):
            next(batches)
        with pytest.raises(SampleError, match=f"sample {BAD} .*{'it is broken' if how == 'bad' else 'truncated'}"):
            next(batches)
    truth = epoch(recipe, Objects())
    source = Objects(**{how: BAD})
    with gpupipe.Loader(source, recipe, 1, seed=SEED, device="cpu", on_error="skip", **settings) as loader:
        made = list(loader)
        assert [error.index for error in loader.bad_samples] == [BAD]
    for position, (one, other) in enumerate(zip(made, truth, strict=True)):
        members = [partner(position, part) for part in range(4)]
        if BAD not in members:
            assert torch.equal(one["boxes"][0], other["boxes"])
            continue
        labels = [sample(position + 1 if index == BAD else index)["label"] for index in members]
        assert {*one["label"][0].tolist()} <= {*np.concatenate(labels).tolist()}


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ((ResizeCenterCrop(30), Mosaic()), "crop's fill"),
        ((Mosaic(), LetterBox(30)), "operations must be"),
        ((gpupipe.PerImage(np.flip), LetterBox(30), Mosaic()), "stands before the crop"),
    ],
)
def test_recipes_that_make_no_sense_are_refused(operations: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recipe(operations)


def test_fields_that_do_not_go_together_are_refused() -> None:
    mosaic, blended = (Recipe((LetterBox(30), one)) for one in (Mosaic(), DetectionMixUp()))
    for recipe, schema, message in (
        (mosaic, Schema.of(None), "Mosaic makes one sample of several, and no gpupipe.Boxes"),
        (blended, Objects("mask").fields, "DetectionMixUp can't blend masks"),
        (Recipe((LetterBox(30), CopyPaste())), Objects().fields, "CopyPaste needs to know the pixels"),
        (Recipe((LetterBox(30), CopyPaste())), Objects("mask", "points").fields, "CopyPaste needs to know the pixels"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_fields(recipe, schema)
    for more in (dict(views=2), {}):
        with pytest.raises(ConfigError, match="one sample of several"):
            gpupipe.MultiCrop((Recipe((LetterBox(30), Mosaic()), **more),))
    with pytest.raises(ConfigError, match="numbers='nothing', which is no field of boxes"):
        Schema({"image": Image(), "mask": Mask(numbers="nothing")})
    with pytest.raises(ConfigError, match="goes with ignore=0"):
        Mask(numbers="boxes", ignore=255)


def test_streams_are_refused() -> None:
    data = gpupipe.Stream([{"image": sample(0)["image"], "boxes": sample(0)["boxes"], "label": 0}])
    with pytest.raises(ConfigError, match="Mosaic takes partners from all of the data, and a stream"):
        gpupipe.Loader(data, Recipe((LetterBox(30), Mosaic())), 1, fields={"image": Image(), "boxes": Boxes()})


def test_the_source_is_told_of_partners_before_they_are_read() -> None:
    class Ahead(Objects):
        looks_ahead = 8

        def __init__(self) -> None:
            super().__init__()
            self.told: list[list[int]] = []
            self.read: list[list[int]] = []

        def ahead(self, coming: Coming) -> None:
            self.told += [coming.indices.tolist()] if len(coming.indices) else []

        def fetch(self, indices: NDArray[np.int64]) -> Columns:
            self.read.append(indices.tolist())
            return super().fetch(indices)

    recipe = Recipe((LetterBox(SIDE), Mosaic()), "uint8")
    for options in (ENGINES[0].values[0], {"engine": "dali", "num_workers": 1}):
        source = Ahead()
        epoch(recipe, source, **options)
        assert source.told[: len(source.read)] == source.read  # and of what would have come then
        assert source.read[0] == [partner(position, part) for position in range(4) for part in range(4)]


def test_a_page_says_of_which_samples_one_is_made() -> None:
    recipe = Recipe((LetterBox(SIDE), Mosaic(0.5), DetectionMixUp(0.5), RandomHorizontalFlip()), "uint8")
    with gpupipe.Loader(Objects(), recipe, 1, seed=SEED, device="cpu", num_workers=0) as loader:
        cards = list(cards_of(loader, read_shown(loader, 6)))
    said = [dict(card.after[0].drawn) for card in cards]
    for position, words in enumerate(said):
        others = partners(recipe, SEED, 0, np.array([position]), SAMPLES)[0]
        names = ", ".join(f"key {index}" for index in others[:3].tolist())
        assert words["Mosaic"] == ("it alone, scaled and shifted" if others[0] < 0 else f"with {names}")
        assert ("rest of" in words["DetectionMixUp"]) == (others[3] >= 0)
    assert len({words["Mosaic"] for words in said}) > 1


def test_presets() -> None:
    flip = RandomHorizontalFlip()
    plain = gpupipe.yolo_train()
    assert plain.operations == (LetterBox(640), Mosaic(1.0, (0.5, 1.5), 0.1), flip, gpupipe.RandomHSV(0.015, 0.7, 0.4))
    large = gpupipe.yolo_train(320, mosaic=0, mixup=0.1, scale=0.25)
    assert large.operations[:4] == (LetterBox(320), Mosaic(0.0, (0.75, 1.25), 0.1), DetectionMixUp(0.1), flip)
    pasting = gpupipe.detection_train("lsj", 64, copy_paste=True)
    assert pasting.operations == (*gpupipe.detection_train("lsj", 64).operations, CopyPaste())
    with pytest.raises(ConfigError, match="goes with augmentation='lsj', not 'ssd'"):
        gpupipe.detection_train("ssd", copy_paste=True)


def test_images_with_one_geometry_are_laid_out_as_one() -> None:
    recipe = Recipe((LetterBox(SIDE), Mosaic(), DetectionMixUp(0.5), RandomHorizontalFlip()), "uint8")
    samples = epoch(recipe, Objects("twin", "other"))
    assert all(torch.equal(one["twin"], one["image"]) for one in samples)
    assert not any(torch.equal(one["other"], one["image"]) for one in samples)


def test_what_a_gpu_does_makes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = [Recipe(EVERYTHING, "uint8")]
    recipes += [Recipe((LetterBox(SIDE, (9, 99, 200)), Mosaic(0.7), DetectionMixUp(0.7)), "uint8")]
    truth = [epoch(recipe, Objects(*some)) for recipe, some in zip(recipes, (["mask"], []), strict=True)]
    monkeypatch.setattr(merging, "_on_cpu", lambda pixels: False)
    for recipe, samples in zip(recipes, truth, strict=True):
        names = [name for name in ("image", "mask") if name in samples[0]]
        for ours, theirs in zip(epoch(recipe, Objects(*names[1:])), samples, strict=True):
            assert all(torch.equal(ours[name], theirs[name]) for name in names)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu() -> None:
    recipe = Recipe(EVERYTHING, "uint8")
    truth = epoch(recipe, Objects("mask"))
    for engine in ("dali", "torch"):
        made = epoch(recipe, Objects("mask"), engine=engine, num_workers=2, device="cuda")
        for ours, theirs in zip(made, truth, strict=True):
            assert all(torch.equal(ours[name].cpu(), theirs[name]) for name in ("boxes", "label", "mask"))
            assert (ours["image"].cpu().float() - theirs["image"].float()).abs().mean() <= 1
