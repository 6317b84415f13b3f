"""Samples of several fields through the Loader, on every engine, beside torchvision v2's functions on tv_tensors."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engines import forked
from images import encode, picture
from numpy.typing import NDArray
from PIL import Image as PillowImage
from pillow_reference import render_reference
from tars import jpeg, write_samples, write_tar
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

import gpupipe
from gpupipe import Array, Boxes, Bytes, Image, Index, Key, Mask, Pad, Points, Ragged, Scalar, Schema, Text
from gpupipe.batch import MISSING, Columns, Coming, Images, Job
from gpupipe.decode import rendering
from gpupipe.decode.fetching import fetch
from gpupipe.plan import cropping
from gpupipe.sources import Source, SubsetSource, open_source

ENGINES: dict[str, dict[str, Any]] = {
    "torch in the process": {"engine": "torch", "num_workers": 0},
    "torch, workers": {"engine": "torch", **forked(2)},
    "DALI": {"engine": "dali", "num_workers": 2},
    "DALI and workers": {
        "engine": "dali",
        **forked(2),
        "decoders": gpupipe.Decoders(cpu_share=0.4, cpu_workers=1),
    },
}
TRAIN = gpupipe.imagenet_train(32, dtype="uint8")
EVAL = gpupipe.imagenet_eval(32, resize=40, dtype="uint8")

FIELDS = {
    "image": Image(),
    "label": Scalar(),
    "mask": Mask(),
    "boxes": Boxes(labels="classes"),
    "classes": Array(),
    "points": Points(outside="keep", collate="stack"),
    "right": Image(geometry="image"),
    "other": Image(),
    "caption": Text(),
    "score": Scalar(dtype="float32"),
    "embedding": Array(),
    "key": Key(),
    "index": Index(),
}


def png(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    file = io.BytesIO()
    PillowImage.fromarray(pixels).save(file, "PNG")
    return np.frombuffer(file.getvalue(), np.uint8)


class Scenes(Source):
    """Made samples that have all kinds of fields; `without` lists (index, field) that some of them lack."""

    fingerprint = "scenes"

    def __init__(self, fields: Any = FIELDS, size: int = 14, without: tuple[tuple[int, str], ...] = ()) -> None:
        self.fields = Schema(fields)
        self.size = size
        self.without = set(without)

    def __len__(self) -> int:
        return self.size

    def fetch(self, indices: NDArray[np.int64]) -> Columns:
        samples = [self.sample(index) for index in indices.tolist()]
        columns: Columns = {name: [sample[name] for sample in samples] for name in self.fields}
        for name in self.fields.images:
            columns[name] = Images([None if data is MISSING else data for data in columns[name]])
        return columns

    def sample(self, index: int) -> dict[str, Any]:
        height, width = 50 + 3 * index, 90 - 2 * index
        random = np.random.default_rng(index)
        mask = random.integers(0, 20, (height, width), dtype=np.uint8)
        count = index % 4
        corners = random.uniform(0, 1, (count, 2, 2)) * (width, height)
        found = {
            "image": np.frombuffer(encode(picture(height, width, index), quality=95), np.uint8),
            "label": index % 3,
            "mask": png(mask) if index % 2 else mask,
            "boxes": np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1),
            "classes": np.arange(count),
            "points": random.uniform(0, 1, (5, 2)) * (width, height),
            "right": np.frombuffer(encode(picture(height, width, index + 100), quality=95), np.uint8),
            "other": picture(40, 60, index + 200),
            "caption": f"scene {index} é",
            "score": index / 4,
            "embedding": random.normal(size=(2, 3)).astype(np.float32),
            "key": self.key(index),
            "index": index,
        }
        return {name: MISSING if (index, name) in self.without else found[name] for name in self.fields}


def batches(source: Any, recipe: Any = TRAIN, size: int = 5, **options: Any) -> Iterator[tuple[Any, list[int]]]:
    options = {"shuffle": True, "seed": 3, "device": "cpu", **options}
    with gpupipe.Loader(source, recipe, size, **options) as loader:
        for batch in loader:
            assert loader.last_indices is not None
            yield batch, loader.last_indices.tolist()


def pixels_of(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return data if data.ndim == 3 else np.asarray(PillowImage.open(io.BytesIO(data.tobytes())).convert("RGB"))


def mask_of(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return data if data.ndim == 2 else np.asarray(PillowImage.open(io.BytesIO(data.tobytes())))


def moved(thing: Any, crops: Any) -> Any:
    """By torchvision: a tv_tensor cut, resized and mirrored as the plan of one image says."""
    (top, left, height, width), (tall, wide), (y, x) = (
        part[0].tolist() for part in (crops.windows, crops.resized, crops.anchors)
    )
    nearest = v2.InterpolationMode.NEAREST
    thing = F.resized_crop(thing, top, left, height, width, [tall, wide], interpolation=nearest)
    thing = F.crop(thing, y, x, *crops.size)
    return F.horizontal_flip(thing) if crops.flips[0] else thing


def as_png(pixels: NDArray[np.uint8]) -> bytes:
    return png(pixels).tobytes()


@pytest.mark.parametrize("recipe", [TRAIN, EVAL], ids=["train", "eval"])
@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
def test_what_is_geometric_follows_the_image(engine: dict[str, Any], recipe: gpupipe.Recipe) -> None:
    source, position = Scenes(), 0
    for batch, indices in batches(source, recipe, **engine):
        assert list(batch) == list(FIELDS)
        boxes = 0
        for row, index in enumerate(indices):
            sample = source.sample(index)
            height, width = pixels_of(sample["image"]).shape[:2]
            sides = np.array([height], np.int32), np.array([width], np.int32)
            crops = cropping(recipe, 3, 0, np.array([position]), *sides)
            for name in ("image", "right"):
                truth = render_reference(sample[name].tobytes(), crops)
                apart = np.abs(batch[name][row].permute(1, 2, 0).numpy().astype(int) - truth)
                assert apart.mean() <= (0.5 if engine["engine"] == "dali" else 0), name
            mask = moved(tv_tensors.Mask(mask_of(sample["mask"])[None].copy()), crops)
            assert batch["mask"].dtype == torch.uint8
            assert torch.equal(batch["mask"][row], mask[0])
            canvas = (height, width)
            found = tv_tensors.BoundingBoxes(torch.from_numpy(sample["boxes"]), format="XYXY", canvas_size=canvas)
            kept = moved(found, crops).reshape(-1, 4)
            large = (kept[:, 2] - kept[:, 0]) * (kept[:, 3] - kept[:, 1]) >= 1
            torch.testing.assert_close(
                batch["boxes"][row].double(), torch.as_tensor(kept[large]), atol=1e-3, rtol=0, check_dtype=False
            )
            assert batch["classes"][row].tolist() == sample["classes"][large.numpy()].tolist()
            boxes += int(large.sum())
            top, left, tall, wide = crops.windows[0].tolist()
            points = (sample["points"] - (left, top)) * (crops.resized[0, ::-1] / (wide, tall)) - crops.anchors[0, ::-1]
            points[:, 0] = crops.size[1] - 1 - points[:, 0] if crops.flips[0] else points[:, 0]
            np.testing.assert_allclose(batch["points"][row].numpy(), points, atol=1e-3)
            other = cropping(recipe, 3, 0, np.array([position]), np.array([40]), np.array([60]), field=2)
            truth = render_reference(as_png(sample["other"]), other)
            assert np.array_equal(batch["other"][row].permute(1, 2, 0).numpy(), truth)  # by the CPU on every engine
            position += 1
        assert len(batch["boxes"].values) == boxes


class Spots(Source):
    """An image whose levels are its mask's numbers, with a spot that a box and a point are of."""

    fingerprint = "spots"
    size = (40, 64)
    fields = Schema({"image": Image(), "mask": Mask(), "boxes": Boxes(), "points": Points(outside="keep")})

    def __len__(self) -> int:
        return 24

    def fetch(self, indices: NDArray[np.int64]) -> Columns:
        columns: Columns = {name: [] for name in self.fields}
        for index in indices.tolist():
            random = np.random.default_rng(index)
            levels = random.integers(0, 200, self.size, np.uint8)
            top, left = random.integers(12, 22), random.integers(20, 38)
            levels[top : top + 6, left : left + 6] = 222
            columns["image"].append(png(np.stack([levels] * 3, axis=-1)))
            columns["mask"].append(png(levels))
            columns["boxes"].append([[left, top, left + 6, top + 6]])
            columns["points"].append([[left + 3, top + 3]])
        columns["image"] = Images(columns["image"])
        return columns


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
def test_what_moves_an_image_moves_the_rest(engine: dict[str, Any]) -> None:
    """On the batch or in the workers, with their image's draws in each view."""
    affine = gpupipe.RandomAffine(15, (0.1, 0.1), (0.8, 1.2), 10, fill=255)
    seen_aside = gpupipe.RandomPerspective(0.2, 0.3, "nearest", 255)
    turned = gpupipe.RandomRotation(30, fill=255)
    moves = (gpupipe.RandomVerticalFlip(), turned, gpupipe.RandomApply((affine,)), seen_aside)
    whole = gpupipe.ResizeCenterCrop(Spots.size, Spots.size)
    recipe = gpupipe.Recipe((whole, gpupipe.RandomHorizontalFlip(), *moves), dtype="uint8", views=2)
    for batch, _ in batches(Spots(), recipe, 8, **engine):
        for view in range(2):
            masks, boxes, points = (batch[name][view] for name in ("mask", "boxes", "points"))
            for channel in batch["image"][view].unbind(1):
                assert torch.equal(channel, masks)
            assert (masks == 255).any()
            for row, mask in enumerate(masks):
                seen = (mask == 222).nonzero().float().flip(1) + 0.5
                assert (points[row][0] - seen.mean(0)).abs().max() < 2.5  # torchvision flips it a pixel further
                corners = torch.cat([seen.amin(0) - 0.5, seen.amax(0) + 0.5])
                assert (boxes[row][0] - corners).abs().max() < 4


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
def test_the_rest_is_passed_on(engine: dict[str, Any]) -> None:
    source = Scenes()
    for batch, indices in batches(source, **engine):
        samples = [source.sample(index) for index in indices]
        assert batch["label"].tolist() == [sample["label"] for sample in samples]
        assert batch["label"].dtype == batch["index"].dtype == torch.int64
        assert batch["index"].tolist() == indices
        assert batch["key"] == [str(index) for index in indices]
        assert batch["caption"] == [sample["caption"] for sample in samples]
        assert batch["score"].dtype == torch.float32
        assert batch["score"].tolist() == [sample["score"] for sample in samples]
        assert torch.equal(batch["embedding"], torch.from_numpy(np.stack([sample["embedding"] for sample in samples])))
        assert isinstance(batch["boxes"], Ragged)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
def test_views_are_lists(engine: dict[str, Any]) -> None:
    """Each with boxes of its own; of a view by itself the same."""
    names = ("image", "mask", "boxes", "classes", "caption")
    fields = {name: FIELDS[name] for name in names}
    recipe = gpupipe.Recipe(TRAIN.operations[:2], dtype="uint8", views=2)
    for batch, indices in batches(Scenes(fields), recipe, **engine):
        for name in names[:4]:
            assert len(batch[name]) == 2
        for view in range(2):
            assert batch["image"][view].shape == (len(indices), 3, 32, 32)
            assert batch["mask"][view].shape == (len(indices), 32, 32)
            assert torch.equal(batch["boxes"][view].offsets, batch["classes"][view].offsets)
        assert not torch.equal(batch["mask"][0], batch["mask"][1])
        assert batch["caption"] == [f"scene {index} é" for index in indices]


def test_ranks_and_batches_see_the_same() -> None:
    whole = {key: batch for batch, _ in batches(Scenes(), size=14, num_workers=0) for key in ("whole",)}["whole"]
    ranks = [
        [batch for batch, _ in batches(Scenes(), size=1, num_workers=0, rank=rank, world_size=2)] for rank in range(2)
    ]
    ones = [batch for pair in zip(*ranks, strict=True) for batch in pair]
    for row, one in enumerate(ones):
        for name in ("image", "mask", "right", "other", "points", "embedding"):
            assert torch.equal(one[name][0], whole[name][row]), name
        assert torch.equal(one["boxes"][0], whole["boxes"][row])
        assert one["caption"] == [whole["caption"][row]]


class TestMissing:
    FIELD = pytest.mark.parametrize("name", ["image", "mask", "boxes", "score", "caption", "embedding", "label"])
    ENGINE = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))

    def source(self, name: str, **options: Any) -> Scenes:
        fields = {key: field for key, field in FIELDS.items() if (name, key) != ("boxes", "classes")}
        fields[name] = type(FIELDS[name])(**{"dtype": "float32"} if name == "score" else {}, **options)
        return Scenes(fields, without=((4, name), (9, name)))

    @FIELD
    @ENGINE
    def test_is_an_error(self, name: str, engine: dict[str, Any]) -> None:
        with pytest.raises(gpupipe.SampleError, match=rf"sample [49] .*{name}"):
            list(batches(self.source(name), **engine))

    @FIELD
    @ENGINE
    def test_is_skipped(self, name: str, engine: dict[str, Any]) -> None:
        source = self.source(name, missing="skip")
        with gpupipe.Loader(source, TRAIN, 5, seed=3, shuffle=True, device="cpu", **engine) as loader:
            seen = [index for batch in loader for index in batch["index"].tolist()]
            assert {error.index for error in loader.bad_samples} == {4, 9}
        assert len(seen) == 14
        assert not {4, 9} & set(seen)

    @pytest.mark.parametrize(
        ("name", "default"), [("mask", None), ("boxes", None), ("score", -1.0), ("caption", None), ("label", 7)]
    )
    @ENGINE
    def test_has_a_default(self, name: str, default: Any, engine: dict[str, Any]) -> None:
        seen = {}
        for batch, indices in batches(self.source(name, missing="default", default=default), **engine):
            seen |= {index: batch[name][row] for row, index in enumerate(indices)}
        for index in (4, 9):
            if name == "mask":
                assert (seen[index] == 255).all()
            elif name == "boxes":
                assert seen[index].shape == (0, 4)
            else:
                assert seen[index] == ("" if default is None else default)
        assert len(seen) == 14

    @pytest.mark.parametrize("make", [np.array, torch.tensor])
    @ENGINE
    def test_a_batch_has_the_default_for_itself(self, make: Any, engine: dict[str, Any]) -> None:
        """What is done to it in place is seen in no other row."""
        default = make([[1.0, 2.0, 30.0, 40.0]])
        source = self.source("embedding", missing="default", default=default, collate="list")
        seen = []
        for batch, indices in batches(source, EVAL, **engine):
            seen += [batch["embedding"][row].clone() for row, index in enumerate(indices) if index in (4, 9)]
            for value in batch["embedding"]:
                value.zero_()
        assert len(seen) == 2
        assert torch.equal(*seen)
        assert seen[0].any()
        assert default.tolist() == [[1.0, 2.0, 30.0, 40.0]]
        value = source[4]["embedding"]
        value[:] = 0
        assert default.tolist() == [[1.0, 2.0, 30.0, 40.0]]


class TestTheMessageAboutWhatIsLacking:
    @pytest.mark.parametrize(
        ("field", "message"),
        [
            (Boxes("json:objects.boxs"), r"'x' \(source='json:objects\.boxs'; there are \['boxes', 'n'\]\)"),
            (Array("json:object"), r"'x' \(source='json:object'; there are \['objects', 'label'\]\)"),
            (Text("json:label.name"), r"'x' \(source='json:label\.name'; there is int\)"),
            (Mask("seg.png"), r"'x' \(source='seg\.png'\)"),
        ],
    )
    @pytest.mark.parametrize("missing", ["error", "skip"])
    def test_of_shards(self, tmp_path: Path, field: Any, message: str, missing: Any) -> None:
        document = json.dumps({"objects": {"boxes": [], "n": 1}, "label": 1}).encode()
        members = [("a.jpg", jpeg(0)), ("a.json", document), ("b.jpg", jpeg(1)), ("b.seg.png", b"")]
        fields = {"image": Image("jpg"), "x": dataclasses.replace(field, missing=missing)}
        shard = str(write_tar(tmp_path / "a.tar", members))
        self.check(shard, fields, r"key 'a' .*has no " + message)

    @pytest.mark.parametrize(
        ("item", "source", "message"),
        [
            ({"image": 0, "target": {"boxes": []}}, "target.boxs", r"source='target\.boxs'; there are \['boxes'\]"),
            ({"image": 0, "y": 3}, None, r"there are \['image', 'y'\]"),
            ({"image": 0, "x": None}, None, r"there are \['image', 'x'\]"),
        ],
    )
    def test_of_a_dataset_in_a_subset(self, item: dict[str, Any], source: Any, message: str) -> None:
        samples = [item | {"image": picture(40, 40)}] * 3
        part = SubsetSource(open_source(samples, fields={"image": Image(), "x": Array(source)}), [2, 1])
        self.check(part, None, rf"list\[[12]\]\): has no 'x' \({message}\)")

    @pytest.mark.parametrize(
        ("field", "policies"),
        [
            (Image(), "missing='skip' for"),
            (Mask(), "missing='skip' or 'default' for"),
            (Array(), "missing='skip' or 'default', with default= for"),
        ],
    )
    def test_offers_what_the_kind_has(self, field: Any, policies: str) -> None:
        samples = [{"image": picture(40, 40), "x": None}]
        self.check(open_source(samples, fields={"image": Image(), "x": field}), None, f"add it, or pass {policies} 'x'")

    def check(self, data: Any, fields: Any, message: str) -> None:
        with gpupipe.Loader(data, TRAIN, 1, num_workers=0, fields=fields, on_error="skip") as loader:
            with suppress(gpupipe.GpupipeError):
                list(loader)
            assert any(re.search(message, str(error)) for error in loader.bad_samples), loader.bad_samples


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
def test_bad_samples_are_replaced_in_all_fields(engine: dict[str, Any]) -> None:
    class Bad(Scenes):
        def sample(self, index: int) -> dict[str, Any]:
            found = super().sample(index)
            if index == 3:
                found["image"] = found["image"][:60]
            if index == 8:
                found["mask"] = np.zeros((5, 5), np.uint8)
            if index == 11:
                found["classes"] = np.arange(9)
            return found

    with pytest.raises(gpupipe.SampleError, match=r"sample (3|8|11) "):
        list(batches(Bad(), **engine))
    seen = []
    for batch, indices in batches(Bad(), on_error="skip", **engine):
        assert batch["index"].tolist() == indices
        assert batch["caption"] == [f"scene {index} é" for index in indices]
        assert len(batch["boxes"]) == len(batch["embedding"]) == len(indices)
        seen += indices
    assert len(seen) == 14
    assert not {3, 8, 11} & set(seen)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
@pytest.mark.parametrize("size", [1, 2])
def test_a_batch_of_bad_samples_alone_has_each_field_of_their_substitutes(size: int, engine: dict[str, Any]) -> None:
    class Bad(Scenes):
        def sample(self, index: int) -> dict[str, Any]:
            if index in (4, 5):
                raise OSError("can't be read")
            return Scenes().sample(index) | {
                "first": f"first {index}",
                "second": f"second {index}",
                "raw": b"%d" % index,
            }

    fields = FIELDS | {"first": Text(), "second": Text(), "raw": Bytes()}
    for batch, indices in batches(Bad(fields), EVAL, size, shuffle=False, on_error="skip", **engine):
        assert not {4, 5} & set(indices)
        for name in ("first", "second"):
            assert batch[name] == [f"{name} {index}" for index in indices]
        assert batch["raw"] == [b"%d" % index for index in indices]
        assert batch["key"] == [Bad().key(index) for index in indices]
        assert batch["index"].tolist() == indices
        assert batch["label"].tolist() == [index % 3 for index in indices]


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
def test_a_substitutes_array_of_another_shape_is_its_own(engine: dict[str, Any]) -> None:
    class Stacked(Scenes):
        def fetch(self, indices: NDArray[np.int64]) -> Columns:
            if 4 in indices:
                raise gpupipe.SampleError(4, self.location(4), "can't be read")
            found = [np.full(1 if index == 5 else 3, index) for index in indices.tolist()]
            alike = len({len(values) for values in found}) == 1
            return super().fetch(indices) | {"embedding": np.stack(found) if alike else found}

    source = Stacked(FIELDS | {"embedding": Array(collate="list")})
    for batch, indices in batches(source, EVAL, 5, shuffle=False, on_error="skip", **engine):
        assert [values.tolist() for values in batch["embedding"]] == [[n] * (1 if n == 5 else 3) for n in indices]


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
@pytest.mark.parametrize("name", ["classes", "boxes"])
def test_one_number_in_the_place_of_rows_is_a_bad_sample(name: str, engine: dict[str, Any]) -> None:
    class Bad(Scenes):
        def sample(self, index: int) -> dict[str, Any]:
            return super().sample(index) | ({name: 7} if index == 5 else {})

    words = rf"sample 5 .*'boxes': '{name}' is one number, 7, where a row for each is wanted"
    with pytest.raises(gpupipe.SampleError, match=words):
        list(batches(Bad(), **engine))
    seen = [index for _, indices in batches(Bad(), on_error="skip", **engine) for index in indices]
    assert len(seen) == 14
    assert 5 not in seen


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
def test_what_a_source_of_the_users_own_raises_is_about_its_sample(engine: dict[str, Any]) -> None:
    class Failing(Scenes):
        def sample(self, index: int) -> dict[str, Any]:
            if index == 6:
                raise KeyError("the user's own words")
            return super().sample(index)

    with pytest.raises(gpupipe.SampleError, match=r"sample 6 .*the user's own words") as caught:
        list(batches(Failing(), **engine))
    assert isinstance(caught.value, KeyError)
    seen = [index for _, indices in batches(Failing(), on_error="skip", **engine) for index in indices]
    assert len(seen) == 14
    assert 6 not in seen


def test_an_image_of_another_size_has_no_shared_draws() -> None:
    fields = {"image": Image(), "other": Image(geometry="image")}
    with pytest.raises(gpupipe.SampleError, match=r"'other' has 40 x 60 pixels, 'image' .*draws of its own"):
        list(batches(Scenes(fields), num_workers=0))


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
@pytest.mark.parametrize("junk", ["image", "right"])
def test_a_damaged_image_of_several_is_no_image_of_another_size(engine: dict[str, Any], junk: str) -> None:
    class Damaged(Scenes):
        def sample(self, index: int) -> dict[str, Any]:
            return super().sample(index) | {junk: np.frombuffer(b"no image at all", np.uint8)}

    fields = {"image": Image(), "right": Image(geometry="image")}
    with pytest.raises(gpupipe.SampleError, match=f"'{junk}': not a readable image"):
        list(batches(Damaged(fields), **engine))


FULL = [(True, np.bool_), (255, np.uint8), (-2, np.int64)]


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
def test_bool_masks_are_false_where_there_is_none(engine: dict[str, Any]) -> None:
    fields = {"image": Image(), "mask": Mask(dtype="bool", missing="default"), "index": Index()}

    class Full(Scenes):
        def sample(self, index: int) -> dict[str, Any]:
            found = super().sample(index)
            return (
                found if index == 3 else found | {"mask": np.full((50 + 3 * index, 90 - 2 * index), *FULL[index % 3])}
            )

    for batch, indices in batches(Full(fields, without=((3, "mask"),)), EVAL, **engine):
        assert batch["mask"].dtype == torch.bool
        assert [bool(mask.all()) for mask in batch["mask"]] == [index != 3 for index in indices]
        assert [bool(mask.any()) for mask in batch["mask"]] == [index != 3 for index in indices]


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
def test_collation_is_the_fields_own(engine: dict[str, Any]) -> None:
    fields = {
        "image": Image(),
        "boxes": Boxes(labels="classes", min_area=0, collate=Pad(-1, mask=True)),
        "classes": Array(collate=Pad(-1)),
        "caption": Text(collate=len),
        "embedding": Array(collate="list"),
    }
    for batch, indices in batches(Scenes(fields), EVAL, **engine):
        assert list(batch) == [*fields, "boxes_mask"]
        longest = max(batch["boxes_mask"].sum(dim=1))
        assert batch["boxes"].shape == (len(indices), longest, 4)
        assert ((batch["classes"] >= 0) == batch["boxes_mask"]).all()
        assert batch["caption"] == len(indices)
        assert [one.shape for one in batch["embedding"]] == [(2, 3)] * len(indices)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
def test_the_state_goes_on_within_an_epoch(engine: dict[str, Any]) -> None:
    whole = list(batches(Scenes(), **engine))
    with gpupipe.Loader(Scenes(), TRAIN, 5, shuffle=True, seed=3, device="cpu", **engine) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with gpupipe.Loader(Scenes(), TRAIN, 5, shuffle=True, seed=3, device="cpu", **ENGINES["torch, workers"]) as loader:
        loader.load_state_dict(state)
        rest = list(loader)
    assert [batch["index"].tolist() for batch in rest] == [indices for _, indices in whole[1:]]
    assert all(torch.equal(one["mask"], other["mask"]) for one, (other, _) in zip(rest, whole[1:], strict=True))
    other = gpupipe.Loader(Scenes({"image": Image()}), TRAIN, 5, shuffle=True, seed=3, num_workers=0)
    with other, pytest.raises(gpupipe.StateError, match=r"the fields differ: .*resume with the fields") as error:
        other.load_state_dict(state)
    assert "recipe" not in str(error.value)


def test_other_fields_of_the_same_shards_are_told_as_such(tmp_path: Path) -> None:
    shard = str(write_samples(tmp_path / "a.tar"))
    loaders = [
        gpupipe.Loader(shard, TRAIN, 2, num_workers=0, fields=fields)
        for fields in (None, {"image": Image("jpg"), "key": Key()}, {"image": Image("jpg"), "label": Scalar("cls")})
    ]
    states = [loader.state_dict() for loader in loaders]
    for number, loader in enumerate(loaders):
        with loader:
            loader.load_state_dict(states[number])
            for state in states[:number] + states[number + 1 :]:
                with pytest.raises(gpupipe.StateError, match="the fields differ"):
                    loader.load_state_dict(state)
            with pytest.raises(gpupipe.StateError, match="source is"):
                loader.load_state_dict(states[number] | {"source": "other"})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x93NUMPY\x01\x00 and so on", r"'mask': it is an \.npy array; .* arrays are gpupipe\.Array"),
        (b"no image at all", r"'mask': it is no image file \(JPEG, PNG, "),
    ],
)
def test_what_is_no_mask_file_is_told(tmp_path: Path, data: bytes, message: str) -> None:
    shard = write_tar(tmp_path / "a.tar", [("a.jpg", jpeg(0)), ("a.npy", data)])
    fields = {"image": Image("jpg"), "mask": Mask("npy")}
    with (
        gpupipe.Loader(str(shard), TRAIN, 1, num_workers=0, fields=fields) as loader,
        pytest.raises(gpupipe.SampleError, match=message) as error,
    ):
        list(loader)
    assert "0x" not in str(error.value)


def test_without_an_image_field_or_a_label() -> None:
    (batch, _), *_ = batches(Scenes({"image": Image()}), num_workers=0)
    assert list(batch) == ["image"]
    (batch, _), *_ = batches(Scenes({"image": Image(), "label": Scalar()}), num_workers=0)
    assert isinstance(batch, tuple)
    (batch, _), *_ = batches(Scenes({"image": Image(), "label": Scalar(), "key": Key()}), num_workers=0)
    assert list(batch) == ["image", "label", "key"]


class TestLookingAhead:
    class Told(Scenes):
        """Writes down what it is told and what is asked of it, in each process."""

        def __init__(self, folder: Path, **options: Any) -> None:
            super().__init__({"image": Image()}, **options)
            self.folder = folder

        def note(self, what: str, indices: NDArray[np.int64]) -> None:
            with (self.folder / str(os.getpid())).open("a") as file:
                file.write(json.dumps([what, indices.tolist()]) + "\n")

        def fetch(self, indices: NDArray[np.int64]) -> Columns:
            self.note("fetch", indices)
            return super().fetch(indices)

        def ahead(self, coming: Coming) -> None:
            self.note("ahead", coming.indices)

    @pytest.mark.parametrize("subset", [False, True])
    @pytest.mark.parametrize("engine", list(ENGINES.values())[:3], ids=list(ENGINES)[:3])
    def test_a_source_is_told_what_the_process_fetches_next(
        self, engine: dict[str, Any], subset: bool, tmp_path: Path
    ) -> None:
        source: Any = self.Told(tmp_path, size=32)
        source = torch.utils.data.Subset(source, range(32)) if subset else source
        options = engine | ({"num_workers": 1} if engine["engine"] == "dali" else {})  # more threads share a batch
        with gpupipe.Loader(source, TRAIN, 4, shuffle=True, device="cpu", **options) as loader:
            for _ in range(2):
                list(loader)
        told = 0
        for file in tmp_path.iterdir():
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            promised: list[list[int]] = []
            for what, indices in lines:
                if what == "ahead":
                    promised.append(indices)
                else:
                    promised = promised[promised.index(indices) + 1 :]  # in their order
                    told += len(indices)
        assert told >= 2 * 32

    def test_others_are_not_bothered(self) -> None:
        with gpupipe.Loader(Scenes({"image": Image()}), TRAIN, 4, num_workers=0) as loader:
            assert not loader.source.looks_ahead


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_values_that_can_not_be_stacked_are_named_by_their_samples(engine: dict[str, Any]) -> None:
    source = Scenes({"image": Image(), "key": Key(), "classes": Array()})
    with pytest.raises(
        gpupipe.DataError,
        match=r"^field 'classes', Array: .*\(0,\) in row 0, \(3,\) in row 1.*; row 1 is sample 3 \(Scenes\[3\]\)",
    ):
        list(batches(source, EVAL, shuffle=False, order=gpupipe.Subset([0, 3, 4]), **engine))


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("collate", ["ragged", "list", gpupipe.Pad()], ids=str)
def test_batches_of_empty_lists_have_the_dtype_of_others(engine: dict[str, Any], collate: Any) -> None:
    class Lists(Scenes):
        def sample(self, index: int) -> dict[str, Any]:
            found = super().sample(index)
            if index < 5:
                return found | {"embedding": [], "classes": [], "boxes": []}
            return found | {"embedding": [index] * (index % 3)}

    fields = {
        "image": Image(),
        "embedding": Array(collate=collate),
        "boxes": Boxes(labels="classes"),
        "classes": Array(),
    }
    kinds = set()
    for batch, _ in batches(Lists(fields), EVAL, shuffle=False, **engine):
        own = batch["embedding"]
        tensors = own if isinstance(own, list) else [own.values if isinstance(own, Ragged) else own]
        kinds |= {tensor.dtype for tensor in tensors}
        kinds.add(batch["classes"].values.dtype)
    assert kinds == {torch.int64}


@pytest.mark.parametrize("workers", [0, 2, 4])
def test_an_empty_list_has_the_dtype_of_rows_that_other_workers_make(workers: int) -> None:
    data = [{"image": np.zeros((8, 8, 3), np.uint8), "v": [] if row < 2 else np.float32([row])} for row in range(4)]
    fields = {"image": Image(), "v": Array(collate="list")}
    with gpupipe.Loader(data, EVAL, 4, fields=fields, device="cpu", engine="torch", **forked(workers)) as loader:
        (batch,) = loader
    assert [value.dtype for value in batch["v"]] == [torch.float32] * 4


def test_an_empty_list_among_floats_is_of_floats() -> None:
    source = gpupipe.open_source(
        [{"v": [0.5]}, {"v": []}, {"v": np.zeros(0, np.float32)}], fields={"v": Array(collate="list")}
    )
    columns = fetch(source, Job(0, 0, np.arange(3), np.arange(3))).columns
    assert [value.dtype for value in columns["v"]] == [np.float64] * 3


@pytest.mark.parametrize("form", [lambda values: values, np.array], ids=["list", "array"])
@pytest.mark.parametrize(
    ("dtype", "value"),
    [("uint8", 300), ("uint8", -1), ("int64", float("nan")), ("int64", 2.7), ("int64", 1e19), ("float16", 70000)],
)
def test_a_value_that_its_dtype_can_not_hold_is_named(form: Any, dtype: str, value: float) -> None:
    class Values(Scenes):
        def fetch(self, indices: NDArray[np.int64]) -> Columns:
            return {"value": form([value if index == 2 else 1 for index in indices.tolist()])}

    with pytest.raises(gpupipe.SampleError, match=rf"sample 2 .*'value' is .*dtype='{dtype}' can't hold") as caught:
        list(batches(Values({"value": Scalar(dtype=dtype)}, size=4), EVAL, shuffle=False, num_workers=0))
    assert f"{form([value, 1])[0]}" in caught.value.reason


@pytest.mark.parametrize(
    ("dtype", "value"), [("float32", 0.1), ("uint8", 255.0), ("int64", np.uint8(3)), ("bool", 3), ("float16", np.inf)]
)
def test_a_cast_may_round_and_widen(dtype: str, value: Any) -> None:
    source = gpupipe.open_source([{"v": value}], fields={"v": Scalar(dtype=dtype)})
    (found,) = fetch(source, Job(0, 0, np.arange(1), np.arange(1))).columns["v"]
    assert found == np.asarray(value).astype(dtype)
    assert found.dtype == dtype


class Normalized(Scenes):
    def sample(self, index: int) -> dict[str, Any]:
        found = super().sample(index)
        return found | {"boxes": found["boxes"] / np.tile((90 - 2 * index, 50 + 3 * index), 2)}


class Elsewhere(Scenes):
    def sample(self, index: int) -> dict[str, Any]:
        found = super().sample(index)
        return found | {"boxes": found["boxes"] + 200}


@pytest.mark.parametrize(
    ("source", "what"),
    [(Scenes, ""), (Normalized, "lie within 1 x 1 pixel, as .* of sample 1 "), (Elsewhere, "were dropped, as ")],
)
@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_boxes_that_are_not_in_pixels_are_told_once(
    source: type[Scenes], what: str, engine: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "JUDGED", set())
    fields = {"image": Image(), "boxes": Boxes(), "points": Points()}
    list(batches(source(fields), EVAL, 14, shuffle=False, engine=engine, num_workers=0 if engine == "torch" else 1))
    said = [record.getMessage() for record in caplog.records if "pixels" in record.getMessage()]
    assert len(said) == bool(what)
    assert not said or re.search(f"'boxes': all of the first .* boxes {what}", said[0])
