"""Batches whose images have sizes of their own: beside torchvision v2, beside batches of one, on both engines."""

from __future__ import annotations

import io
import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from images import encode, picture, write_folder
from PIL import Image as PillowImage
from pillow_reference import render_reference
from torchvision import tv_tensors
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import MultiScaleRoIAlign
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

import gpupipe
from gpupipe import Array, Boxes, Image, Loader, Mask, MultiCrop, Pad, Points, Recipe, Resize
from gpupipe.errors import ConfigError
from gpupipe.kernels import Crops, Erase, decode_crops, finish, native
from gpupipe.kernels.finish import finish_padded
from gpupipe.plan import augmentation, cropping, erasing
from gpupipe.plan.stream import CROP, Stream, below

SIZES = ((60, 100), (100, 60), (80, 80), (33, 120), (90, 77), (50, 51), (64, 64), (120, 33), (70, 41), (41, 70))
FLIP = gpupipe.RandomHorizontalFlip()


class Samples(torch.utils.data.Dataset[Any]):
    """Images of all sizes with masks, boxes with classes, and points; every other one a PNG."""

    def __len__(self) -> int:
        return len(SIZES)

    def __getitem__(self, index: int) -> dict[str, Any]:
        height, width = SIZES[index]
        rng = np.random.default_rng(index)
        corners = np.sort(rng.uniform(0, 1, (1 + index % 3, 2, 2)), axis=1) * (width, height)
        return {
            "image": encode(picture(height, width, index), ("JPEG", "PNG")[index % 2]),
            "mask": rng.integers(0, 100, (height, width), np.uint8),
            "boxes": corners.reshape(-1, 4).astype(np.float32),
            "classes": np.arange(1 + index % 3),
            "points": rng.uniform(0, 1, (4, 2)) * (width, height),
        }


def fields(image: Any = "list", **more: Any) -> dict[str, Any]:
    return {
        "image": Image("image", collate=image),
        "mask": Mask("mask", **more),
        "boxes": Boxes("boxes", labels="classes", collate="list"),
        "classes": Array("classes", collate="list"),
        "points": Points("points", outside="keep", collate="list"),
    }


def loader(recipe: Any, batch_size: int = len(SIZES), schema: Any = None, **options: Any) -> Loader:
    options = {"engine": "torch", "device": "cpu", "num_workers": 0} | options
    return Loader(Samples(), recipe, batch_size, fields=schema or fields(), **options)


def batches(*arguments: Any, **options: Any) -> list[Any]:
    with loader(*arguments, **options) as made:
        return list(made)


def planned(crop: Any, sizes: Any, seed: int = 0) -> Crops:
    heights, widths = np.array(sizes, np.int32).T
    return cropping(Recipe((crop,)), seed, 0, np.arange(len(heights)), heights, widths)


# Geometry.


@pytest.mark.parametrize("shorter", [1, 7, 64, 224, 800, None])
@pytest.mark.parametrize("longer", [1, 1.7, 3])
def test_the_sizes_are_those_of_torchvisions_resize(shorter: int | None, longer: float) -> None:
    max_size = 1 + int((shorter or 90) * longer)
    sizes = [*np.random.default_rng(max_size).integers(1, 1500, (200, 2)).tolist(), [9, 9], [1, 5000], [5000, 1]]
    made = planned(Resize(shorter, max_size), sizes)
    for size, ours in zip(sizes, made.sizes.tolist(), strict=True):
        try:
            whole = functional.resize(torch.empty(1, *size, device="meta"), shorter, max_size=max_size)
        except RuntimeError:  # where it leaves no pixel, we leave one
            assert min(ours) == 1, size
            continue
        assert ours == list(whole.shape[1:]), size
    assert (made.resized == made.sizes).all()
    assert made.sizes.prod(axis=1).max() <= Resize(shorter, max_size).most_pixels
    assert (made.sizes.max(axis=0) <= Resize(shorter, max_size).output_size).all()


@pytest.mark.parametrize("sides", [(64,), (480, 512, 544, 800), (800, 300)])
@pytest.mark.parametrize("max_size", [90, 1333])
def test_the_sizes_are_those_of_torchvisions_random_shortest_size(
    sides: tuple[int, ...], max_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = np.random.default_rng(3).integers(30, 900, (100, 2)).tolist()
    crop = Resize(sides, max_size)
    made = planned(crop, sizes, 7)
    which = below(Stream(7, 0, np.arange(len(sizes))).words(CROP)[0], len(sides)).tolist()
    assert set(which) == set(range(len(sides)))
    for drawn, size, ours in zip(which, sizes, made.sizes.tolist(), strict=True):
        monkeypatch.setattr(torch, "randint", lambda *_, drawn=drawn: torch.tensor(drawn))
        there = v2.RandomShortestSize(list(sides), max_size).make_params([torch.empty(1, *size, device="meta")])
        assert ours == list(there["size"])
    assert made.sizes.prod(axis=1).max() <= crop.most_pixels


def by_torchvision(index: int, resize: Any) -> dict[str, Any]:
    """What a transform of v2 makes of a sample."""
    sample, canvas = Samples()[index], SIZES[index]
    image = resize(PillowImage.open(io.BytesIO(sample["image"])).convert("RGB"))
    return {
        "image": functional.to_dtype(functional.to_image(image), torch.float32, scale=True),
        "mask": resize(tv_tensors.Mask(torch.from_numpy(sample["mask"]))),
        "boxes": resize(tv_tensors.BoundingBoxes(sample["boxes"], format="XYXY", canvas_size=canvas)),
        "points": resize(tv_tensors.KeyPoints(torch.from_numpy(sample["points"]), canvas_size=canvas)),
    }


@pytest.mark.parametrize("engine", ["torch", "dali"])
@pytest.mark.parametrize("shorter", [48, 90])
def test_images_masks_boxes_and_points_are_those_of_torchvisions_resize(shorter: int, engine: Any) -> None:
    (batch,) = batches(Recipe((Resize(shorter, 100),)), engine=engine)
    for index in range(len(SIZES)):
        wanted = by_torchvision(index, v2.Resize(shorter, max_size=100))
        assert batch["image"][index].shape == wanted["image"].shape
        difference = 255 * (batch["image"][index] - wanted["image"]).abs()
        assert difference.max() < (1.01 if engine == "torch" else 9)
        assert difference.mean() < 0.5
        if engine == "torch":  # Pillow 13 turns the order of passes round for some
            pixels = render_reference(Samples()[index]["image"], planned(Resize(shorter, 100), SIZES).row(index))
            np.testing.assert_array_equal(np.rint(255 * batch["image"][index].permute(1, 2, 0).numpy()), pixels)
        assert torch.equal(batch["mask"][index], wanted["mask"])
        torch.testing.assert_close(batch["boxes"][index], wanted["boxes"].as_subclass(torch.Tensor), atol=1e-3, rtol=0)
        points = wanted["points"].as_subclass(torch.Tensor).float()
        torch.testing.assert_close(batch["points"][index], points, atol=1e-3, rtol=0)


@pytest.mark.parametrize("fill", [None, (9, 90, 200)])
def test_the_kernel_writes_rows_that_begin_with_their_images(fill: tuple[int, int, int] | None) -> None:
    files = [Samples()[index]["image"] for index in range(0, len(SIZES), 2)]
    count = len(files)
    sizes = np.random.default_rng(0).integers(20, 60, (count, 2)).astype(np.int32)
    windows = [(3, 4, 30, 20)] * count
    out = np.full((count, 60 * 60, 3), 77, np.uint8)
    anchors = -5 if fill else 0
    crops = replace(Crops.of(windows, (60, 60), resized=sizes, anchors=anchors, flips=True, fill=fill), outputs=sizes)
    decoded = decode_crops(files, [crops], out=[out])
    assert decoded.images[0] is out
    assert not decoded.failures
    for row, (height, width) in enumerate(sizes.tolist()):
        own = crops.row(row)
        assert own.size == (height, width)
        image = out[row, : height * width].reshape(height, width, 3)
        np.testing.assert_array_equal(image, render_reference(files[row], own))
        assert (out[row, height * width :] == 77).all()
    with pytest.raises(ValueError, match=r"to be written"):
        decode_crops(files, [crops], out=[out[:, :100]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_kernel_finishes_images_into_corners(dtype: torch.dtype, channels_last: bool) -> None:
    """As it finishes each alone, to the bit, by every variant, also erased, whatever was there before."""
    sizes = [(1, 1), (7, 33), (40, 16), (23, 50), (40, 50), (3, 49)]
    rows = [torch.from_numpy(picture(*size, number)) for number, size in enumerate(sizes)]
    boxes = np.array([[0, 0, height // 2, width - width // 3] for height, width in sizes], np.int32)
    keys = np.arange(12, dtype=np.uint32).reshape(6, 2)
    erases = [None, Erase(boxes, (1.0, -2.0, 3.0)), Erase(boxes, None, keys)] if dtype != torch.uint8 else [None]
    layout = torch.channels_last if channels_last else torch.contiguous_format
    statistics = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    for variant, erase in itertools.product(native.variants(), erases):
        out = torch.full((6, 3, 40, 50), 9).to(dtype).contiguous(memory_format=layout)
        finish_padded(rows, out, *statistics, 7, erase=erase, threads=2, variant=variant)
        for number, (row, own, (height, width)) in enumerate(zip(rows, out, sizes, strict=True)):
            at = slice(number, number + 1)
            one = None if erase is None else Erase(boxes[at], erase.value, keys[at] if erase.value is None else None)
            assert torch.equal(own[:, :height, :width], finish(row[None], *statistics, dtype, erase=one)[0])
            assert (own[:, height:] == 7).all()
            assert (own[:, :, width:] == 7).all()


@pytest.mark.parametrize(
    ("rows", "shape", "said"),
    [
        ([torch.zeros(5, 6, 3)], (1, 3, 5, 6), "rows must be contiguous uint8"),
        ([torch.zeros(5, 6, 3, dtype=torch.uint8)[:, ::2]], (1, 3, 5, 6), "rows must be contiguous uint8"),
        ([torch.zeros(5, 6, 3, dtype=torch.uint8)], (1, 3, 5, 5), r"but \(1, 3, 5, 6\) or more is needed"),
        ([torch.zeros(5, 6, 3, dtype=torch.uint8)], (2, 3, 5, 6), r"but \(1, 3, 5, 6\) or more is needed"),
        ([torch.zeros(5, 6, 3, dtype=torch.uint8)], (1, 4, 5, 6), r"out is .* \(1, 4, 5, 6\), but"),
    ],
)
def test_the_kernel_refuses_what_does_not_fit(rows: Any, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        finish_padded(rows, torch.zeros(shape), (0.0,) * 3, (1.0,) * 3)


def test_padding_without_the_kernels_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe((Resize((30, 48, 64), 96), FLIP, gpupipe.Normalize(), gpupipe.RandomErasing(0.9, value=3.0)))
    schema = fields(Pad(multiple=32, mask=True, value=-2))
    (by_kernel,) = batches(recipe, schema=schema)
    monkeypatch.setattr(native, "library", lambda: None)
    (plain,) = batches(recipe, schema=schema)
    assert torch.equal(by_kernel["image"], plain["image"])


# How they come out.


@pytest.mark.parametrize("engine", ["torch", "dali"])
@pytest.mark.parametrize(
    ("dtype", "layout"),
    [("float32", "NCHW"), ("bfloat16", "channels_last"), ("uint8", "NCHW"), ("uint8", "channels_last")],
)
def test_padding_is_the_list_top_left_with_a_value_around_it(engine: Any, dtype: str, layout: Any) -> None:
    normalize = () if dtype == "uint8" else (gpupipe.Normalize(),)
    recipe = Recipe((Resize((30, 48, 64), 96), FLIP, *normalize), dtype=dtype, layout=layout)
    pad = Pad(multiple=32, mask=True, value=7)
    listed, padded = (
        batches(recipe, 4, fields(collate), engine=engine, num_workers=workers)
        for collate, workers in (("list", 0), (pad, 1))
    )
    for images, batch in zip(listed, padded, strict=True):
        heights, widths = zip(*(image.shape[1:] for image in images["image"]), strict=True)
        size = tuple(-(-max(sides) // 32) * 32 for sides in (heights, widths))
        assert batch["image"].shape[2:] == batch["image_mask"].shape[1:] == batch["mask"].shape[1:] == size
        last = torch.channels_last if layout == "channels_last" else torch.contiguous_format
        assert batch["image"].is_contiguous(memory_format=last)
        assert batch["image"].dtype == getattr(torch, dtype)
        assert batch["image_mask"].dtype == torch.bool
        for row, (height, width) in enumerate(zip(heights, widths, strict=True)):
            image, mask, there = (batch[name][row] for name in ("image", "mask", "image_mask"))
            assert torch.equal(image[:, :height, :width], images["image"][row])
            assert torch.equal(mask[:height, :width], images["mask"][row])
            assert there[:height, :width].all()
            assert there.sum() == height * width
            assert (image[:, ~there] == 7).all()
            assert (mask[~there] == 255).all()
            assert torch.equal(batch["boxes"][row], images["boxes"][row])


def turned(image: Any, generator: Any) -> Any:
    return image[::-1, ::-1]


OPERATIONS = {
    "flip": (FLIP,),
    "colors": (FLIP, gpupipe.ColorJitter(0.4, 0.4), gpupipe.GaussianBlur(5)),
    "moves": (FLIP, gpupipe.RandomRotation(30), gpupipe.RandomAffine(10, (0.2, 0.2))),
    "policy": (FLIP, gpupipe.RandAugment()),
    "per image": (FLIP, gpupipe.PerImage(turned, geometric=False)),
    "erasing": (FLIP, gpupipe.Normalize(), gpupipe.RandomErasing(0.9, value=3.0)),
    "noise": (FLIP, gpupipe.Normalize(), gpupipe.RandomErasing(0.9, value="random")),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("size", [4, 7])
def test_each_image_is_what_it_is_in_a_batch_of_one(name: str, size: int) -> None:
    """So no row's size or neighbours decide what is drawn for another."""
    recipe = Recipe((Resize((30, 48, 64), 96), *OPERATIONS[name]))
    alone = batches(recipe, 1, seed=5)
    several = batches(recipe, size, seed=5, num_workers=1)
    for key in fields():
        rows = [row for batch in several for row in batch[key]]
        for row, (one,) in zip(rows, (batch[key] for batch in alone), strict=True):
            assert torch.equal(row, one), key


def test_draws_are_those_for_the_rows_own_size() -> None:
    """A row's program and erased box are those of a recipe of that one size."""
    sizes = np.array(SIZES, np.int32)
    operations = (gpupipe.RandomAffine(10, (0.2, 0.2)), gpupipe.Normalize(), gpupipe.RandomErasing(1.0))
    varied, positions = Recipe((Resize(40, 100), *operations)), np.arange(len(sizes))
    program = augmentation(varied, 3, 1, positions, sizes=sizes)
    boxes = erasing(varied, 3, 1, positions, sizes=sizes)
    assert program is not None
    assert boxes is not None
    for row, size in enumerate(SIZES):
        fixed, own = Recipe((gpupipe.ResizeCenterCrop(size, size), *operations)), positions[row : row + 1]
        alone, box = augmentation(fixed, 3, 1, own), erasing(fixed, 3, 1, own)
        assert alone is not None
        assert box is not None
        np.testing.assert_array_equal(program.values[row], alone.values[0])
        np.testing.assert_array_equal(boxes.boxes[row], box.boxes[0])
    assert len(np.unique(program.values[:, 0, 2])) == len(sizes)


def test_boxes_and_masks_stay_with_their_images_where_these_are_turned() -> None:
    """A mask of ones is where the image is not the fill, and a box around all of it."""

    class Whole(Samples):
        def __getitem__(self, index: int) -> dict[str, Any]:
            height, width = SIZES[index]
            return {
                "image": np.full((height, width, 3), 200, np.uint8),
                "mask": np.ones((height, width), np.uint8),
                "boxes": np.array([[0, 0, width, height]], np.float32),
                "classes": np.array([0]),
                "points": np.array([[width / 2 - 0.5, height / 2 - 0.5]]),
            }

    turned = gpupipe.RandomRotation((30, 30), fill=0)
    for collate in ("list", Pad(multiple=16)):
        with Loader(
            Whole(), Recipe((Resize((30, 60), 96), turned)), 10, fields=fields(collate, ignore=0), num_workers=0
        ) as made:
            (batch,) = made
        if collate == "list":  # what the docstring says of saving one
            assert len({image.untyped_storage().data_ptr() for image in batch["image"]}) < len(batch["image"])
            assert batch["image"][0].clone().untyped_storage().nbytes() == batch["image"][0].nbytes
        for image, mask, box, point in zip(
            *(batch[name] for name in ("image", "mask", "boxes", "points")), strict=True
        ):
            assert torch.equal(image[0] > 0, mask > 0)
            down, across = torch.nonzero(mask, as_tuple=True)
            left, top, right, bottom = box[0].tolist()
            edges = (across.min(), down.min(), across.max() + 1, down.max() + 1)
            for edge, found in zip((left, top, right, bottom), edges, strict=True):
                assert abs(edge - int(found)) <= 1
            assert mask[int(point[0, 1] + 0.5), int(point[0, 0] + 0.5)]


@pytest.mark.parametrize("collate", ["list", Pad(multiple=32)])
def test_fixed_sizes_can_be_listed_and_padded_too(collate: Any) -> None:
    recipe = Recipe((gpupipe.RandomResizedCrop((40, 50)), FLIP, gpupipe.ColorJitter(0.4), gpupipe.Normalize()))
    (stacked,), (made,) = (batches(recipe, schema=fields(how)) for how in ("stack", collate))
    for name, value in (("image", 0), ("mask", 255)):
        rows = list(made[name]) if collate == "list" else list(made[name][..., :40, :50])
        assert all(map(torch.equal, rows, stacked[name]))
        if collate != "list":
            assert made[name].shape[-2:] == (64, 64)
            assert (made[name][..., 40:, :] == value).all()
            assert (made[name][..., 50:] == value).all()
        else:
            assert isinstance(made[name], list)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "int64"])
def test_masks_of_every_dtype_are_padded_with_what_they_ignore(dtype: str) -> None:
    ignore = {"int16": -1, "int64": 1 << 40}.get(dtype, 255)
    (listed,), (made,) = (
        batches(Recipe((Resize(40, 90),)), schema=fields("list", dtype=dtype, ignore=ignore, collate=collate))
        for collate in ("list", Pad(multiple=32))
    )
    assert made["mask"].dtype == getattr(torch, dtype)
    for row, own in zip(made["mask"], listed["mask"], strict=True):
        whole = np.full(row.shape, ignore, dtype)
        whole[: own.shape[0], : own.shape[1]] = own.numpy()
        np.testing.assert_array_equal(row.numpy(), whole)


def test_several_views_and_image_fields_come_in_sizes_of_their_own() -> None:
    schema = {
        "image": Image("image", collate="list"),
        "other": Image("image", collate=Pad(mask=True)),
        "same": Image("image", geometry="image", collate="list"),
    }
    recipe = MultiCrop((Recipe((Resize((30, 50), 70), FLIP), views=2), Recipe((gpupipe.RandomResizedCrop(24), FLIP))))
    (batch,) = batches(recipe, schema=schema)
    first, second, third = batch["image"]
    assert [image.shape[1:] for image in third] == [(24, 24)] * len(SIZES)
    assert [image.shape for image in first] != [image.shape for image in second]
    assert all(map(torch.equal, first, batch["same"][0]))
    for view, (images, masks) in enumerate(zip(batch["other"], batch["other_mask"], strict=True)):
        assert images.shape[2:] == masks.shape[1:]
        assert masks.any(dim=2).all(dim=1).any() or view < 2
    assert batch["other"][2].shape == (len(SIZES), 3, 24, 24)
    assert [list(image.shape[1:]) for image in first] != [
        [int(m.any(1).sum()), int(m.any(0).sum())] for m in batch["other_mask"][0]
    ]


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_images_are_turned_upright_before_their_size_is_told(engine: Any) -> None:
    class Turned(Samples):
        def __getitem__(self, index: int) -> dict[str, Any]:
            exif = PillowImage.Exif()
            exif[0x0112] = 1 + index % 8
            return {"image": encode(picture(*SIZES[index], index), exif=exif)}

    recipe = Recipe((Resize(40, 90),), exif_orientation=True)
    options: Any = dict(fields={"image": Image(collate="list")}, engine=engine, device="cpu", num_workers=0)
    with Loader(Turned(), recipe, 10, **options) as made:
        (batch,) = made
    for index, image in enumerate(batch["image"]):
        size = SIZES[index][::-1] if index % 8 >= 4 else SIZES[index]
        own = planned(Resize(40, 90), [size])
        pixels = render_reference(Turned()[index]["image"], own.row(0), exif=True)
        difference = np.abs(255 * image.permute(1, 2, 0).numpy() - pixels)
        assert difference.max() < (0.01 if engine == "torch" else 9)
        assert difference.mean() < 0.6


def test_operations_of_ones_own_get_batches_of_one_size_or_the_whole() -> None:
    means = gpupipe.OnBatch(lambda batch, rng: [image.mean() for image in batch["image"]], name="means", whole=True)
    (batch,), (made,) = (batches(Recipe((Resize(40, 90), *more))) for more in ((), (means,)))
    assert made == [image.mean() for image in batch["image"]]
    negative = gpupipe.OnBatch(lambda images, rng: -images, name="negative", geometric=False)
    for one, other in zip(
        batches(Recipe((Resize(40, 90), gpupipe.Normalize(), negative)), 1, fields("stack")),
        batches(Recipe((Resize(40, 90), gpupipe.Normalize())), 1, fields("stack")),
        strict=True,
    ):
        assert torch.equal(one["image"], -other["image"])


def test_image_and_label_are_a_tuple_but_where_a_mask_goes_with_them(tmp_path: Any) -> None:
    folder = write_folder(tmp_path, sizes=SIZES)
    recipe = Recipe((Resize(40, 60),))

    def first(collate: Any) -> Any:
        schema = {"image": Image(collate=collate), "label": gpupipe.Scalar()}
        with Loader(folder, recipe, 3, fields=schema, num_workers=0, device="cpu") as made:
            return next(iter(made))

    images, labels = first("list")
    assert len(images) == len(labels) == 3
    assert first(Pad(multiple=32))[0].shape[2] % 32 == 0
    assert sorted(first(Pad(mask=True))) == ["image", "image_mask", "label"]


# The guarantees.


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_any_number_of_ranks_and_any_resume_give_the_same_images(engine: Any) -> None:
    recipe = Recipe((Resize((30, 48, 64), 96), FLIP, gpupipe.RandomRotation(20)))
    whole = batches(recipe, 4, engine=engine, shuffle=True)
    parts = [batches(recipe, 2, engine=engine, shuffle=True, rank=rank, world_size=2) for rank in (0, 1)]
    for global_batch, *ranks in zip(whole, *parts, strict=True):
        for name in ("image", "mask", "boxes"):
            rows = [row for rank in ranks for row in rank[name]]
            assert all(map(torch.equal, global_batch[name], rows[: len(global_batch[name])]))
    with loader(recipe, 4, engine=engine, shuffle=True) as made:
        next(iter(made))
        state, stats = made.state_dict(), made.stats()
    assert (stats["batches"], stats["images"]) == (1, 4)
    with loader(recipe, 4, engine=engine, shuffle=True) as made:
        made.load_state_dict(state)
        for batch, wanted in zip(made, whole[1:], strict=True):
            assert all(map(torch.equal, batch["image"], wanted["image"]))


class SomeBad(Samples):
    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        return sample | {"image": sample["image"][:40]} if index in (1, 6) else sample


@pytest.mark.parametrize("engine", ["torch", "dali"])
@pytest.mark.parametrize("collate", ["list", Pad(multiple=8)])
def test_a_bad_sample_is_replaced_by_one_of_another_size(engine: Any, collate: Any) -> None:
    recipe = Recipe((Resize(48, 96), FLIP))
    options: Any = dict(fields=fields(collate), engine=engine, device="cpu", num_workers=1)
    with Loader(SomeBad(), recipe, 5, on_error="skip", **options) as made:
        got = [row for batch in made for row in zip(batch["image"], batch["mask"], strict=True)]
        assert [bad.index for bad in made.bad_samples] == [1, 6]
    with Loader(Samples(), recipe, 5, **options) as made:
        wanted = [row for batch in made for row in zip(batch["image"], batch["mask"], strict=True)]
    if collate == "list":
        for row in set(range(len(SIZES))) - {1, 6}:
            assert all(map(torch.equal, got[row], wanted[row]))
    there = [mask[:48, :48] for mask in (got[1][1], wanted[2][1])]  # all of sample 2's
    assert torch.equal(there[0], there[1]) or torch.equal(there[0], there[1].flip(1))


def test_sharing_between_dali_and_the_cpu_gives_rows_of_both() -> None:
    recipe = Recipe((Resize((30, 48, 64), 96), FLIP))
    shared = gpupipe.Decoders(cpu_share=0.5, cpu_workers=1)
    alone, both = (
        batches(recipe, 5, fields(Pad(multiple=32)), engine="dali", num_workers=2, decoders=decoders)
        for decoders in (None, shared)
    )
    for one, other in zip(alone, both, strict=True):
        assert one["image"].shape == other["image"].shape
        assert (one["image"] - other["image"]).abs().mean() < 1 / 255
        assert torch.equal(one["mask"], other["mask"])


def test_what_a_transform_changes_before_the_crop_decides_its_size() -> None:
    halved = gpupipe.PerImage(lambda image, rng: image[: len(image) // 2], name="upper half")
    schema = {"image": Image("image", collate="list")}
    (batch,) = batches(Recipe((halved, Resize(40, 90))), schema=schema)
    sizes = [(height // 2, width) for height, width in SIZES]
    assert [tuple(image.shape[1:]) for image in batch["image"]] == list(
        map(tuple, planned(Resize(40, 90), sizes).sizes.tolist())
    )


# What is refused.


def test_sizes_that_differ_are_not_stacked() -> None:
    said = r"field 'image': Resize gives .* \d+ sizes \(height x width\), such as .*; pass Image\(collate=gpupipe.Pad"
    with pytest.raises(ConfigError, match=said):
        batches(Recipe((Resize(40, 90),)), schema=fields(None))
    with pytest.raises(ConfigError, match=r"pass order=gpupipe\.Buckets\.by_aspect\(\.\.\.\), or Image\(collate="):
        batches(Recipe((gpupipe.BucketCrop(((30, 60), (60, 30), (48, 48))),)), schema=fields(None))
    (first, *_) = batches(Recipe((Resize(40, 90),)), 1, fields(None))
    assert first["image"].shape == (1, 3, 40, 66)


@pytest.mark.parametrize(
    ("operation", "collate", "said"),
    [
        (gpupipe.MixUp(3), "list", "MixUp mixes images of one size, but Resize gives each its own"),
        (gpupipe.OnBatch(torch.nn.Identity()), "list", r"Identity\(\)' works on images that are stacked"),
        (gpupipe.RandomErasing(value="random"), Pad(), "would draw other numbers for 'image' with other images beside"),
    ],
)
def test_what_does_not_go_with_sizes_that_vary_is_refused(operation: Any, collate: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        loader(Recipe((Resize(40, 90), operation)), schema={"image": Image("image", collate=collate)})


def test_noise_is_refused_where_images_of_one_size_are_padded() -> None:
    """On a GPU it would be of the padded image's pixels, by the CPU's kernel of the image's own."""
    recipe = Recipe((gpupipe.ResizeCenterCrop(40, 50), gpupipe.Normalize(), gpupipe.RandomErasing(value="random")))
    with pytest.raises(ConfigError, match="would draw other numbers for 'image'"):
        loader(recipe, schema={"image": Image("image", collate=Pad())})


@pytest.mark.parametrize("crop", [Resize(40, 90), gpupipe.ResizeCenterCrop(40, 50)])
@pytest.mark.parametrize(
    ("dtype", "value", "other"),
    [
        *(("uint8", value, "float32") for value in (-1, 256, 0.5)),
        *(("float16", value, "bfloat16") for value in (70000, -65520.0)),
        ("bfloat16", 3.4e38, "float32"),
        ("float32", 1e39, None),
        ("uint8", float("inf"), "float16"),
    ],
)
def test_a_value_of_padding_that_the_dtype_cannot_hold_is_refused(
    crop: Any, dtype: str, value: float, other: str | None
) -> None:
    schema = {"image": Image("image", collate=Pad(value=value))}
    with pytest.raises(ConfigError, match=re.escape(f"'image' is padded with {value}, which dtype={dtype!r} can't")):
        loader(Recipe((crop,), dtype=dtype), schema=schema)
    if other is not None:
        loader(Recipe((crop,), dtype=other), schema=schema).close()


def test_clips_have_one_size() -> None:
    with pytest.raises(ConfigError, match=r"'clip' are clips, which have one size, but Resize\(shorter=40"):
        loader(Recipe((Resize(40, 90),)), schema={"clip": gpupipe.Frames("image")})


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Resize(64), r"max_size is not given; pass what .*, as Resize\(64, max_size="),
        (lambda: Resize(0, 90), "shorter=0, and each of several, must be an int from 1"),
        (lambda: Resize((), 90), r"shorter=\(\), .* must be"),
        (lambda: Resize((40, "x"), 90), "must be an int from 1"),
        (lambda: Resize(100, 90), r"max_size=90 must be at least shorter=100, .*give shorter=\(100,\)"),
        (lambda: Mask(collate=Pad(value=3)), "pads with ignore="),
        (lambda: Pad(value="3"), "Pad: value='3' must be a number"),  # type: ignore[arg-type]
    ],
)
def test_settings_that_make_no_sense_are_refused(made: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made()


def nested_tensor(images: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """DETR's (util/misc.py of facebookresearch/detr): images with their padding, and where that is."""
    size = [max(image.shape[side] for image in images) for side in (1, 2)]
    tensor, mask = torch.zeros((len(images), 3, *size)), torch.ones((len(images), *size), dtype=torch.bool)
    for image, padded, there in zip(images, tensor, mask, strict=True):
        padded[:, : image.shape[1], : image.shape[2]].copy_(image)
        there[: image.shape[1], : image.shape[2]] = False
    return tensor, mask


def test_padded_batches_are_those_of_torchvisions_detection_models_and_of_detr() -> None:
    recipe = Recipe((Resize((30, 48, 64), 96), FLIP, gpupipe.Normalize()))
    (listed,), (by_32,), (by_1,) = (
        batches(recipe, schema=fields(how)) for how in ("list", Pad(multiple=32), Pad(mask=True))
    )
    batched = GeneralizedRCNNTransform(1, 1, [0.0] * 3, [1.0] * 3).batch_images(listed["image"], size_divisible=32)
    assert torch.equal(by_32["image"], batched)
    tensor, mask = nested_tensor(listed["image"])
    assert torch.equal(by_1["image"], tensor)
    assert torch.equal(~by_1["image_mask"], mask)


def test_faster_rcnn_takes_the_list() -> None:
    backbone = torch.nn.Conv2d(3, 8, 16, stride=16)
    backbone.out_channels = 8
    model = FasterRCNN(
        backbone,
        num_classes=4,
        min_size=64,
        max_size=96,
        rpn_anchor_generator=AnchorGenerator(((16, 32),), ((1.0,),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], 2, 2),
        box_head=TwoMLPHead(8 * 2 * 2, 1024),
    )
    batch = batches(gpupipe.detection_train("multiscale", 96), 3)[0]
    targets = [
        {"boxes": boxes, "labels": classes + 1} for boxes, classes in zip(batch["boxes"], batch["classes"], strict=True)
    ]
    losses = model(batch["image"], targets)
    assert len(losses) == 4
    assert all(loss.isfinite() for loss in losses.values())
    with torch.no_grad():
        found = model.eval()(batch["image"])
    assert len(found) == 3


# Memory.


@pytest.mark.parametrize("collate", ["list", Pad(multiple=32)])
def test_batches_of_any_sizes_use_the_same_memory_and_kept_ones_stay_as_they_are(collate: Any) -> None:
    recipe = Recipe((Resize((30, 48, 64), 96), gpupipe.Normalize()))
    with loader(recipe, 2, fields(collate), num_workers=1) as made:
        begins, kept, copies = [], [], []
        for _ in range(4):
            for number, batch in enumerate(made):
                begins.append(batch["image"][0].untyped_storage().data_ptr())
                if number == 1:
                    kept += list(batch["image"])
                    copies += [image.clone() for image in batch["image"]]
    assert len(set(begins)) <= 4 + 4  # those that were kept, and a few in turn
    assert all(map(torch.equal, kept, copies))
