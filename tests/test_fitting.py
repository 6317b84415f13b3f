"""Crops whose outputs follow from the images' sizes, and the orders whose batches go with them."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from images import encode, picture
from PIL import Image
from pillow_reference import render_reference
from torch.utils.data import Dataset
from torchvision.transforms.v2 import functional

import gpupipe
from gpupipe import BucketCrop, Buckets, Loader, Pad, Recipe, ResizeToSequence
from gpupipe.errors import ConfigError
from gpupipe.kernels import Crops
from gpupipe.kernels.sizes import sequence_sizes
from gpupipe.plan import cropping

BUCKETS = ((48, 48), (32, 64), (64, 32))
SIZES = np.random.default_rng(5).integers(30, 140, (41, 2))
EXTREME = np.array([(1, 1), (1, 3000), (3000, 1), (511, 513), (640, 480), (480, 640), (2048, 256)])
FILES = [encode(picture(height, width, at)) for at, (height, width) in enumerate(SIZES.tolist())]


class Samples(Dataset[Any]):
    fingerprint = "fitting"

    def __len__(self) -> int:
        return len(FILES)

    def __getitem__(self, index: int) -> Any:
        return FILES[index], index


def planned(crop: Any, sizes: Any = SIZES, seed: int = 0) -> Crops:
    heights, widths = np.array(sizes, np.int32).T
    return cropping(Recipe((crop,)), seed, 0, np.arange(len(heights)), heights, widths)


def covered(height: int, width: int, buckets: Any) -> tuple[list[int], list[int]]:
    """Of one image: the size to which kohya's sd-scripts resize it for its bucket, and the bucket."""
    own = math.log(height / width)
    tall, wide = min(buckets, key=lambda one: (round(abs(own - math.log(one[0] / one[1])), 9), one[0] / one[1]))
    scale = tall / height if width / height > wide / tall else wide / width
    return [int(height * scale + 0.5), int(width * scale + 0.5)], [tall, wide]


@pytest.mark.parametrize("buckets", [BUCKETS, BucketCrop.of_area(512).buckets, ((9, 7),)])
def test_buckets_are_covered_and_cut_in_the_middle(buckets: Any) -> None:
    sizes = np.concatenate([SIZES, SIZES[:, ::-1], EXTREME])
    crops = planned(BucketCrop(buckets), sizes)
    assert crops.outputs is not None
    for row, size in enumerate(sizes.tolist()):
        resized, bucket = covered(*size, buckets)
        assert crops.outputs[row].tolist() == bucket
        assert crops.resized[row].tolist() == resized
        assert crops.anchors[row].tolist() == [(side - out) // 2 for side, out in zip(resized, bucket, strict=True)]
    assert gpupipe.output_sizes(BucketCrop(buckets), sizes).tolist() == crops.outputs.tolist()
    groups = Buckets.by_aspect(sizes, buckets, 4).groups
    assert np.array(buckets)[groups].tolist() == crops.outputs.tolist()


def test_parts_at_random_are_all_as_likely() -> None:
    crops = planned(BucketCrop(((40, 40),), "random"), [(40, 43)] * 4000, seed=3)
    assert (crops.anchors[:, 0] == 0).all()
    counts = np.bincount(crops.anchors[:, 1], minlength=4)
    assert len(counts) == 4
    assert abs(counts - 1000).max() < 120


@pytest.mark.parametrize(
    ("size", "low", "high", "step"), [(512, 256, 1024, 64), ((768, 1024), 512, 2048, 64), (64, 16, 128, 8)]
)
def test_buckets_of_an_area_are_those_of_kohyas_scripts(size: Any, low: int, high: int, step: int) -> None:
    area = size**2 if isinstance(size, int) else math.prod(size)
    square = int(math.sqrt(area) // step) * step
    expected = {(square, square)}
    for width in range(low, high + 1, step):
        height = min(high, area // width // step * step)
        expected |= {(width, height), (height, width)} if height >= low else set()
    made = BucketCrop.of_area(size, low, high, step)
    largest = {height / width: (height, width) for height, width in sorted(expected)}
    assert set(made.buckets) == set(largest.values())
    assert made.most_pixels <= area
    assert made.output_size == (max(side for side, _ in expected), max(side for _, side in expected))


@pytest.mark.parametrize(("patch", "length"), [(16, 256), (14, 1024), (32, 49), (16, 1)])
def test_sequences_are_as_long_as_can_be(patch: int, length: int) -> None:
    sizes = np.concatenate([SIZES * 7, EXTREME[3:]])
    made = planned(ResizeToSequence(patch, length), sizes)
    assert made.outputs is not None
    assert (made.outputs == made.resized).all()
    assert (made.outputs % patch == 0).all()
    counts = made.outputs // patch
    assert (counts.prod(axis=1) <= length).all()
    # The smallest enlargement by which one more patch comes along a side is too much.
    ratio = np.array(counts) * patch / sizes
    more = np.ceil(sizes * (ratio.min(axis=1, keepdims=True) * (1 + 1e-3)) / patch)
    assert (more.prod(axis=1) > length).all()
    assert ResizeToSequence(patch, length).most_pixels == patch * patch * length


@pytest.mark.trainers("timm")
@pytest.mark.parametrize(("patch", "length"), [(16, 256), (14, 1024), (32, 49), (16, 1), (7, 577)])
@pytest.mark.parametrize("max_ratio", [None, 1.0, 0.37])
def test_sequences_are_timms(patch: int, length: int, max_ratio: float | None) -> None:
    from timm.data.naflex_transforms import get_image_size_for_seq

    sizes = np.concatenate([np.random.default_rng(length).integers(1, 5000, (300, 2)), SIZES, EXTREME[1:]])
    expected = [get_image_size_for_seq(size, patch, length, max_ratio=max_ratio)[1] for size in sizes.tolist()]
    assert sequence_sizes(sizes, patch, length, max_ratio).tolist() == list(map(list, expected))


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_batches_of_buckets(engine: Any) -> None:
    """Each is of one size, on any number of ranks, and has the pixels of Pillow."""
    crop = BucketCrop(BUCKETS)
    source = gpupipe.open_source(Samples())
    order = Buckets.by_aspect(source.image_sizes(), BUCKETS, 6)
    options = {"engine": engine, "device": "cpu", "num_workers": int(engine == "dali"), "seed": 3}
    recipe = Recipe((crop,), dtype="uint8")
    with Loader(source, recipe, order=order, **options) as one:
        whole = [(images.clone(), labels.tolist()) for images, labels in one]
    assert sorted(index for _, labels in whole for index in labels) == list(range(len(FILES)))
    assert len({tuple(images.shape[2:]) for images, _ in whole}) == 3
    crops = planned(crop)
    for images, labels in whole:
        for image, index in zip(images, labels, strict=True):
            own = crops.row(index)
            assert image.shape[1:] == own.size
            pixels = render_reference(FILES[index], own)
            difference = np.abs(image.permute(1, 2, 0).numpy().astype(int) - pixels)
            assert difference.max() <= (0 if engine == "torch" else 9)
            assert difference.mean() < 0.5
    ranks = [Loader(source, recipe, order=order, rank=rank, world_size=2, **options) for rank in range(2)]
    for (images, labels), parts in zip(whole, zip(*ranks, strict=True), strict=True):
        assert [index for _, part in parts for index in part.tolist()][: len(labels)] == labels
        assert torch.equal(torch.cat([part for part, _ in parts])[: len(labels)], images)


def test_other_buckets_than_the_orders_are_told() -> None:
    order = Buckets.by_aspect(SIZES, ((10, 10),), 8)
    loader = Loader(Samples(), Recipe((BucketCrop(BUCKETS),)), order=order, engine="torch", device="cpu", num_workers=0)
    with pytest.raises(ConfigError, match="collate"):
        list(loader)


def test_a_bad_sample_is_replaced_in_its_size() -> None:
    class Damaged(Samples):
        def __getitem__(self, index: int) -> Any:
            return FILES[index] if index % 7 else b"no image", index

    order = Buckets.by_aspect(SIZES, BUCKETS, 6)  # as if they were known
    recipe, options = Recipe((BucketCrop(BUCKETS),)), {"engine": "torch", "device": "cpu", "num_workers": 0}
    loader = Loader(Damaged(), recipe, order=order, on_error="skip", **options)
    assert sum(len(labels) for _, labels in loader) == len(FILES)
    assert len(loader.bad_samples) == 6


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_sequences_within_a_budget(engine: Any) -> None:
    """Each batch, padded, has its tokens within the budget, and the mask says which patches there are."""
    crop = ResizeToSequence(8, 60, max_ratio=0.5, interpolation="bilinear")
    tokens = (gpupipe.output_sizes(crop, SIZES) // 8).prod(axis=1)
    assert 3 < tokens.min() < tokens.max() <= 60
    order = Buckets.by_size(tokens, 240, buckets=3)
    fields = {"image": gpupipe.Image(collate=Pad(multiple=8, mask=True)), "label": gpupipe.Scalar()}
    options = {"engine": engine, "device": "cpu", "num_workers": int(engine == "dali"), "fields": fields}
    seen = []
    for batch in Loader(Samples(), Recipe((crop,), dtype="uint8"), order=order, **options):
        found = batch["image_mask"][:, ::8, ::8].sum(dim=(1, 2))
        assert found.tolist() == tokens[batch["label"].numpy()].tolist()
        assert len(found) * found.max() <= 240
        for image, mask, index in zip(batch["image"], batch["image_mask"], batch["label"].tolist(), strict=True):
            height, width = planned(crop).size_of(index)
            assert (mask[:height, :width].all(), int(mask.sum())) == (True, height * width)
            original = Image.open(io.BytesIO(FILES[index])).convert("RGB")
            wanted = functional.pil_to_tensor(functional.resize(original, [height, width]))
            assert (image[:, :height, :width].int() - wanted.int()).abs().max() <= (1 if engine == "torch" else 9)
        seen += batch["label"].tolist()
    assert sorted(seen) == list(range(len(FILES)))


def test_padding_takes_no_memory_for_shapes_that_do_not_come() -> None:
    """Of 1,024 patches in a row, one image may be as wide as another is high."""
    fields = {"image": gpupipe.Image(collate=Pad(multiple=16)), "label": gpupipe.Scalar()}
    options = {"engine": "torch", "device": "cpu", "num_workers": 0, "fields": fields}
    recipe = Recipe((ResizeToSequence(16, 1024, max_ratio=1.0), gpupipe.Normalize()))
    (images, _) = next(iter(Loader(Samples(), recipe, 32, **options)))
    assert images.shape[2] <= 144
    one = Recipe((ResizeToSequence(8, 12, max_ratio=1.0),))  # beyond four times of what an image has

    class Slim(Samples):
        def __getitem__(self, index: int) -> Any:
            return encode(picture(*((8, 96) if index % 2 else (96, 8)), index)), index

    (images, _) = next(iter(Loader(Slim(), one, 4, **options)))
    assert images.shape == (4, 3, 96, 96)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: BucketCrop(()), "each of another ratio"),
        (lambda: BucketCrop(((8, 8), (16, 16))), "each of another ratio"),
        (lambda: BucketCrop(((8, 0),)), "a bucket must be a positive int"),
        (lambda: BucketCrop(BUCKETS, "left"), "must be one of center, random"),  # type: ignore[arg-type]
        (lambda: BucketCrop.of_area(512, divisible=0), "divisible=0 must be an int from 1"),
        (
            lambda: BucketCrop.of_area(256),
            "size=256 has room for no buckets .* min_size=256 .* but for a square; lower",
        ),
        (lambda: BucketCrop.of_area(32), "size=32 has room for no buckets"),
        (lambda: ResizeToSequence(0), "patch_size=0"),
        (lambda: ResizeToSequence(16, 0), "max_seq_len=0"),
        (lambda: ResizeToSequence(16, 256, 0.0), "max_ratio=0.0"),
        (lambda: gpupipe.output_sizes(gpupipe.Resize((32, 64), 96), SIZES), "draws the size of each image"),
    ],
)
def test_refusals(make: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make()


def test_sizes_of_other_crops() -> None:
    assert gpupipe.output_sizes(gpupipe.RandomResizedCrop((32, 48)), SIZES[:2]).tolist() == [[32, 48]] * 2
    assert gpupipe.output_sizes(gpupipe.Resize(32, 96), [(100, 50)]).tolist() == [[64, 32]]
