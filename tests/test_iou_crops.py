"""SSD's crops against torchvision's RandomZoomOut and RandomIoUCrop, which are given the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from images import encode, picture
from numpy.typing import NDArray
from torchvision import tv_tensors
from torchvision.transforms import v2

import gpupipe
from gpupipe import Array, Boxes, Image, Mask, Scalar, Schema
from gpupipe.batch import Columns, Images
from gpupipe.errors import ConfigError
from gpupipe.kernels.philox import uniform
from gpupipe.plan import cropping, follow_boxes
from gpupipe.plan.stream import IOU, ZOOM, Stream, below
from gpupipe.recipe import RandomHorizontalFlip, RandomIoUCrop, Recipe, check_fields
from gpupipe.sources import Source

SIZE = (60, 90)  # height and width of all images
ROWS = 120


def some_boxes(position: int) -> np.ndarray:
    """Float32, as torchvision's, of which the first samples have none."""
    rng = np.random.default_rng(position)
    corners = np.sort(rng.uniform(0, 1, (position % 4, 2, 2)), axis=1) * SIZE[::-1]
    return corners.reshape(-1, 4).astype(np.float32)


def planned(crop: RandomIoUCrop, rows: Any = range(ROWS), **more: Any) -> gpupipe.kernels.Crops:
    positions = np.array(rows)
    sides = (np.full(len(positions), side, np.int32) for side in SIZE)
    boxes = [some_boxes(position).astype(np.float64) for position in positions.tolist()]
    return cropping(Recipe((crop, RandomHorizontalFlip())), 5, 2, positions, *sides, boxes=boxes, **more)


def numbers(crop: RandomIoUCrop, position: int, canvas: tuple[int, int]) -> Iterator[Any]:
    """What torchvision draws on a canvas, in its order."""
    stream = Stream(5, 2, np.array([position]))
    for page in range(50):
        yield int(below(stream.words(page << 24 | IOU)[0], len(crop.sampler_options))[0])
        for trial in range(crop.trials):
            first = uniform(stream.words(page << 24 | IOU + 1 + trial))[:, 0]
            yield first[:2]
            wide, tall = (
                int(side * (crop.min_scale + (crop.max_scale - crop.min_scale) * share))
                for side, share in zip(canvas[::-1], first, strict=False)
            )
            if crop.min_aspect_ratio <= wide / tall <= crop.max_aspect_ratio:
                yield first[2:]


@pytest.mark.parametrize(
    "crop",
    [
        RandomIoUCrop(30),
        RandomIoUCrop(30, (1, 4), 0.6, fill=(123, 117, 104)),
        RandomIoUCrop((20, 40), (1.5, 2), 1, 0.5, 0.8, 0.9, 1.2, (0.3, 0.9, 1), 9),
    ],
)
def test_windows_and_boxes_are_torchvisions(crop: RandomIoUCrop, monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned(crop)
    zoomed = whole = 0
    for row in range(ROWS):
        boxes = tv_tensors.BoundingBoxes(torch.from_numpy(some_boxes(row)), format="XYXY", canvas_size=SIZE)
        sample: Any = (tv_tensors.Image(torch.zeros(3, *SIZE, dtype=torch.uint8)), boxes)
        top = left = 0
        applied, *places = uniform(Stream(5, 2, np.array([row])).words(ZOOM))[:, 0]
        if crop.zoom_out and applied < crop.p:
            given = iter([np.array(places[:1]), np.array(places[1:])])
            monkeypatch.setattr(torch, "rand", lambda *_, given=given: torch.from_numpy(next(given)))
            zoom = v2.RandomZoomOut(fill=list(crop.color or ()), side_range=crop.zoom_out)
            params = zoom.make_params(list(sample))
            left, top = params["padding"][:2]
            sample = tuple(zoom.transform(part, params) for part in sample)
            zoomed += 1
        canvas = tuple(sample[0].shape[-2:])
        given = numbers(crop, row, canvas)
        monkeypatch.setattr(torch, "rand", lambda *_, given=given: torch.from_numpy(next(given)))
        monkeypatch.setattr(torch, "randint", lambda given=given, **_: torch.tensor(next(given)))
        theirs = v2.RandomIoUCrop(
            *(crop.min_scale, crop.max_scale, crop.min_aspect_ratio, crop.max_aspect_ratio),
            *(list(crop.sampler_options), crop.trials),
        )
        params = theirs.make_params(list(sample))
        expected = [params.get(name, 0) for name in ("top", "left")]
        expected += [params.get(name, side) for name, side in zip(("height", "width"), canvas, strict=True)]
        whole += not params
        assert made.windows[row].tolist() == [expected[0] - top, expected[1] - left, *expected[2:]]
        found = v2.functional.resize(theirs.transform(sample[1], params), list(crop.output_size))
        inside = params.get("is_within_crop_area", torch.ones(len(boxes), dtype=torch.bool)).numpy()
        found = v2.functional.horizontal_flip(found) if made.flips[row] else found
        moved, kept = follow_boxes(some_boxes(row), "xyxy", made, row, 0)
        np.testing.assert_array_equal(kept, inside)
        np.testing.assert_allclose(moved, found.numpy()[inside], atol=1e-3)
    assert 0 < whole < ROWS
    assert (zoomed > 0) == (crop.zoom_out is not None)
    assert (made.resized == crop.output_size).all()


def test_crops_do_not_depend_on_the_batch() -> None:
    crop = RandomIoUCrop(30, (1, 4))
    made, some = planned(crop), planned(crop, [7, 99, 3])
    np.testing.assert_array_equal(some.windows, made.windows[[7, 99, 3]])
    assert (planned(crop, view=1).windows != made.windows).any()
    # Golden values: a saved run must see the same crops with every later version.
    assert made.windows[[0, 1, 2, 3, 5, 6]].tolist() == [
        [-64, -161, 202, 303],
        [-74, -132, 150, 226],
        [-113, -115, 183, 275],
        [-28, 31, 87, 62],
        [21, 43, 22, 36],
        [0, 0, 60, 90],
    ]


def test_a_sample_without_a_crop_that_fits_is_shown_whole() -> None:
    """Where torchvision's would try for ever."""
    assert (planned(RandomIoUCrop(30, sampler_options=(0.5,)), [0, 4, 8]).windows == (0, 0, *SIZE)).all()


class Objects(Source):
    """Images with boxes."""

    fingerprint = "objects"

    def __init__(self, **boxes: Any) -> None:
        self.fields = Schema(
            {"image": Image(), "boxes": Boxes(labels="label", **boxes), "label": Array(), "mask": Mask()}
        )

    def __len__(self) -> int:
        return 24

    def fetch(self, indices: NDArray[np.int64]) -> Columns:
        rows = indices.tolist()
        return {
            "image": Images([np.frombuffer(encode(picture(*SIZE, row), quality=95), np.uint8) for row in rows]),
            "boxes": [some_boxes(row) for row in rows],
            "label": [np.arange(row % 4) for row in rows],
            "mask": [np.full(SIZE, 1, np.uint8) for _ in rows],
        }


def epoch(source: Source, batch: int, **options: Any) -> list[dict[str, Any]]:
    """The samples of an epoch, by their places in it."""
    crop = RandomIoUCrop(48, (1, 4), fill=(9, 99, 200))
    recipe = Recipe((crop, RandomHorizontalFlip()), dtype="uint8")
    with gpupipe.Loader(source, recipe, batch, shuffle=True, seed=5, device="cpu", **options) as loader:
        return [{name: column[row] for name, column in made.items()} for made in loader for row in range(batch)]


def test_engines_and_ranks_agree() -> None:
    truth = epoch(Objects(), 8, engine="torch", num_workers=2)
    assert len({tuple(sample["label"].tolist()) for sample in truth}) > 3
    halves = [epoch(Objects(), 4, num_workers=0, rank=rank, world_size=2) for rank in (0, 1)]
    ranks = [sample for step in range(3) for half in halves for sample in half[4 * step : 4 * step + 4]]
    for other, far in ((ranks, 0), (epoch(Objects(), 8, engine="dali", num_workers=1), 1.0)):
        for ours, theirs in zip(truth, other, strict=True):
            for name in ("boxes", "label", "mask"):
                assert torch.equal(ours[name], theirs[name])
            assert (ours["image"].float() - theirs["image"].float()).abs().mean() <= far


def test_images_without_boxes_are_refused() -> None:
    schema = {"image": Image(), "label": Scalar()}
    with pytest.raises(ConfigError, match="RandomIoUCrop is chosen by boxes, and 'image' has none"):
        check_fields(Recipe((RandomIoUCrop(30),)), Schema(schema))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(zoom_out=(0.5, 2)), r"zoom_out=\(0.5, 2.0\) must be \(low, high\) from 1 on"),
        (dict(sampler_options=()), "one number of 0 or more"),
        (dict(trials=0), "trials=0"),
        (dict(min_scale=0.5, max_scale=0.4), "min_scale=0.5"),
        (dict(max_scale=1.5), "max_scale=1.5"),
        (dict(min_aspect_ratio=3), "min_aspect_ratio=3"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RandomIoUCrop(30, **settings)
