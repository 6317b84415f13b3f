"""The engine on DALI against what worker processes make of the same samples: several fields, declined and bad rows."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from images import encode, picture
from PIL import Image as PillowImage

import gpupipe
from gpupipe.batch import Array, Batch, Boxes, Image, Images, Job, Mask, Points, Schema, Text
from gpupipe.decode.dali import beside
from gpupipe.decode.dali.engine import DaliEngine
from gpupipe.decode.engine import Engine
from gpupipe.decode.rendering import planes, render_batch
from gpupipe.decode.sharing import SharingEngine
from gpupipe.errors import SampleError
from gpupipe.sources import Source
from gpupipe.workers.work import new_planes

TRAIN = gpupipe.imagenet_train(32, dtype="uint8")
PAIR = Schema.of(None)
SIZES = [(60, 80), (50, 44), (70, 64), (33, 65), (48, 48), (90, 40)]
JPEGS = [encode(picture(*size, seed=number)) for number, size in enumerate(SIZES)]
MANY = Schema(
    {
        "left": Image(),
        "right": Image(geometry="left"),
        "other": Image(),
        "mask": Mask(),
        "boxes": Boxes(labels="classes"),
        "classes": Array(),
        "points": Points(outside="keep"),
        "caption": Text(),
        "score": Array(),
    }
)


class Listed(Source):
    """Samples in lists, by field. `fetched` counts how often each was asked for."""

    def __init__(self, fields: Schema, **columns: list[Any]) -> None:
        self.fields = fields
        self.fingerprint = ""
        self.columns = columns
        self.fetched = np.zeros(len(self), int)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def fetch(self, indices: np.ndarray) -> dict[str, Any]:
        self.fetched[indices] += 1
        found: dict[str, Any] = {}
        for name, values in self.columns.items():
            column = [values[index] for index in indices.tolist()]
            if isinstance(self.fields[name], Image):
                column = Images([np.frombuffer(one, np.uint8) if isinstance(one, bytes) else one for one in column])
            found[name] = column
        return found


def pairs(files: list[Any]) -> Listed:
    return Listed(PAIR, image=files, label=list(range(len(files))))


def many() -> Listed:
    """Two cameras that share their draws and one with its own; two boxes and a point in each image."""
    rng = np.random.default_rng(0)
    masks = [rng.integers(0, 9, size, dtype=np.uint8) for size in SIZES]
    boxes = [np.array([[2, 3, 20, 30], [width - 9, height - 9, width, height]]) for height, width in SIZES]
    return Listed(
        MANY,
        left=JPEGS,
        right=[encode(picture(*size, seed=50 + number)) for number, size in enumerate(SIZES)],
        other=[encode(picture(40 + number, 70)) for number in range(len(SIZES))],
        mask=[np.frombuffer(encode(mask, "PNG", "L"), np.uint8) for mask in masks],
        boxes=boxes,
        classes=[np.array([number, number + 100]) for number in range(len(SIZES))],
        points=[np.array([[5.0, 7.0]])] * len(SIZES),
        caption=[f"image {number}" for number in range(len(SIZES))],
        score=[number / 2 for number in range(len(SIZES))],
    )


def job(indices: list[int], step: int = 0) -> Job:
    return Job(5, 1, np.arange(len(indices)) + 100 * step, np.array(indices, np.int64), step)


def opened(source: Source, *recipes: gpupipe.Recipe, batch_size: int = 6, threads: int = 2) -> DaliEngine:
    views = recipes or (TRAIN,)
    return DaliEngine(source, views, torch.device("cpu"), batch_size, threads, 2, gpupipe.Decoders())


def truth(source: Source, one: Job, *recipes: gpupipe.Recipe) -> Batch:
    views = recipes or (TRAIN,)
    out = new_planes(planes(source.fields, views), len(one))
    return render_batch(source, views, one, out, augmented=False)


def assert_is_truth(source: Source, made: Batch, one: Job, *recipes: gpupipe.Recipe) -> None:
    """Images within what DALI is off, all else to the bit."""
    expected = truth(source, one, *recipes)
    assert made.job is one
    assert (made.failures, made.augmented, made.collated) == ({}, False, False)
    assert made.bytes_read == expected.bytes_read
    assert set(made.columns) == set(source.fields)
    for name in source.fields:
        if name in source.fields.images:
            for view, other in zip(made.columns[name], expected.columns[name], strict=True):
                assert (view.int() - other.int()).abs().float().mean() < 0.5
        else:
            assert_alike(made.columns[name], expected.columns[name])


def assert_alike(made: Any, expected: Any) -> None:
    """Values of columns that are no images."""
    if isinstance(expected, torch.Tensor):
        assert torch.equal(made, expected)
    elif isinstance(expected, list | tuple):
        assert type(made) is type(expected)
        assert len(made) == len(expected)
        for one, other in zip(made, expected, strict=True):
            assert_alike(one, other)
    else:
        np.testing.assert_array_equal(made, expected)


# Several fields


@pytest.mark.parametrize("recipes", [(TRAIN,), (TRAIN, gpupipe.imagenet_eval(24, dtype="uint8"))], ids=["one", "two"])
@pytest.mark.parametrize("threads", [1, 3])
def test_all_fields_are_those_of_a_worker(recipes: tuple[gpupipe.Recipe, ...], threads: int) -> None:
    source = many()
    jobs = [job([3, 0, 5, 5, 1]), job([4, 2], step=1)]
    engine = opened(source, *recipes, threads=threads)
    for made, one in zip(engine.stream(jobs), jobs, strict=True):
        assert_is_truth(source, made, one, *recipes)
    engine.close()


class Workers:
    """What worker processes do, in this one."""

    device = torch.device("cpu")
    name = "torch"

    def __init__(self, source: Source, *recipes: gpupipe.Recipe) -> None:
        self.source = source
        self.recipes = recipes

    def stream(self, jobs: Iterable[Job]) -> Iterator[Batch]:
        return (truth(self.source, one, *self.recipes) for one in jobs)

    def close(self) -> None:
        return


@pytest.mark.parametrize("recipes", [(TRAIN,), (TRAIN, gpupipe.imagenet_eval(24, dtype="uint8"))], ids=["one", "two"])
def test_all_fields_are_merged_of_both_parts(recipes: tuple[gpupipe.Recipe, ...]) -> None:
    """Rows of odd samples are the workers', so the batches have both, one, or the other."""
    source = many()
    dali = opened(source, *recipes)
    shared = SharingEngine(dali, Workers(source, *recipes), lambda one: one.indices % 2 == 1)  # type: ignore[arg-type]
    jobs = [job([3, 0, 5, 4, 1, 1]), job([4, 2, 0], step=1), job([1, 3], step=2), job([5, 0], step=3)]
    for made, one in zip(shared.stream(jobs), jobs, strict=True):
        assert_is_truth(source, made, one, *recipes)
        odd = one.indices % 2 == 1
        for view, other in zip(made.columns["left"], truth(source, one, *recipes).columns["left"], strict=True):
            assert torch.equal(view[odd], other[odd])
    shared.close()


# Rows that DALI must not see

ODD = {
    "pixels": picture(40, 44),
    "GIF": encode(picture(41, 52), "GIF", "P"),
    "TIFF": encode(picture(62, 33), "TIFF"),
    "CMYK": encode(picture(47, 58), mode="CMYK"),
}


@pytest.fixture
def made_in(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that made images, a name for each row."""
    names: list[str] = []
    decode = beside.decode_images

    def noted(part: Any, *args: Any) -> None:
        names.extend([threading.current_thread().name] * len(part.columns["image"]))
        decode(part, *args)

    monkeypatch.setattr(beside, "decode_images", noted)
    return names


def test_declined_rows_are_no_failures_and_made_by_threads(made_in: list[str]) -> None:
    source = pairs([JPEGS[0], ODD["pixels"], ODD["GIF"], JPEGS[1], ODD["TIFF"], ODD["CMYK"]])
    engine, one = opened(source), job([0, 1, 2, 3, 4, 5])
    (made,), expected = engine.stream([one]), truth(source, one)
    engine.close()
    assert made.failures == {}
    assert made.columns["label"] == [0, 1, 2, 3, 4, 5]
    assert torch.equal(made.columns["image"][0][[1, 2, 4, 5]], expected.columns["image"][0][[1, 2, 4, 5]])
    assert (made.columns["image"][0].int() - expected.columns["image"][0].int()).abs().float().mean() < 0.5
    assert len(made_in) == 4
    assert all(name.startswith("gpupipe-make") for name in made_in)


@pytest.mark.parametrize("decoders", [gpupipe.Decoders(), gpupipe.Decoders(cpu_share=0.5, cpu_workers=1)])
def test_decoded_samples_of_a_dataset_are_the_torch_engines_to_the_bit(decoders: gpupipe.Decoders) -> None:
    images = [picture(40 + number, 50, number) for number in range(10)]
    kinds = (np.asarray, lambda pixels: torch.from_numpy(pixels).permute(2, 0, 1), PillowImage.fromarray)
    data = [(kinds[number % 3](pixels), number) for number, pixels in enumerate(images)]
    epochs = []
    for options in ({"engine": "torch", "num_workers": 0}, {"engine": "dali", "num_workers": 2, "decoders": decoders}):
        with gpupipe.Loader(data, TRAIN, 4, shuffle=True, device="cpu", **options) as loader:
            epochs.append([(images.clone(), labels) for _ in range(2) for images, labels in loader])
    for (images, labels), (others, other_labels) in zip(*epochs, strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, other_labels)


def test_they_are_made_ahead_of_time(made_in: list[str]) -> None:
    """While the consumer has not even asked for the first batch."""
    engine = opened(pairs([ODD["GIF"]] * 2), batch_size=2)
    stream = engine.stream([job([0, 1]), job([1, 0], step=1)])
    engine._feeder._threads.making.shutdown()  # waits for what has been submitted
    assert len(made_in) == 4
    assert [len(batch.columns["label"]) for batch in stream] == [2, 2]
    engine.close()


@pytest.mark.parametrize("bad", [b"", b"no image" * 20, JPEGS[2][:200]])
def test_what_the_cpu_can_not_make_either_is_a_failure(bad: bytes) -> None:
    engine = opened(pairs([JPEGS[0], bad, ODD["GIF"], JPEGS[1]]))
    (made,) = engine.stream([job([0, 1, 2, 3])])
    engine.close()
    assert list(made.failures) == [1]
    assert made.failures[1].index == 1
    assert made.failures[1].reason == truth(pairs([bad]), job([0])).failures[0].reason


def test_a_bad_mask_or_box_is_a_failure_of_its_row() -> None:
    source = many()
    source.columns["mask"][2] = np.frombuffer(b"no image", np.uint8)
    source.columns["boxes"][4] = np.zeros((1, 5))
    engine = opened(source)
    (made,) = engine.stream([job([0, 2, 4, 1])])
    engine.close()
    assert {row: error.index for row, error in made.failures.items()} == {1: 2, 2: 4}
    assert ["mask" in made.failures[1].reason, "boxes" in made.failures[2].reason] == [True, True]
    expected = truth(source, job([0, 2, 4, 1]))
    for row in (0, 3):
        assert_alike(made.columns["boxes"][row], expected.columns["boxes"][row])


def test_what_dali_refuses_is_made_beside_it_and_nothing_read_again(caplog: pytest.LogCaptureFixture) -> None:
    broken = encode(picture(90, 120, 3), "PNG")
    at = broken.index(b"IDAT") + 30
    source = many()
    source.columns["other"][3] = broken[:at] + b"abc" + broken[at + 3 :]
    caplog.set_level("INFO", logger="gpupipe")
    jobs = [job([0, 1]), job([3, 2], step=1), job([4, 3], step=2), job([5], step=3)]
    engine = opened(source, batch_size=2)
    batches = list(engine.stream(jobs))
    assert [list(batch.failures) for batch in batches] == [[], [0], [1], []]
    assert "'other'" in batches[1].failures[0].reason
    assert source.fetched.tolist() == [1, 1, 1, 2, 1, 1]
    for batch, one in zip(batches, jobs, strict=True):
        assert batch.job is one
        left = batch.columns["left"][0][[row for row in range(len(one)) if row not in batch.failures]]
        other = truth(source, one).columns["left"][0][[row for row in range(len(one)) if row not in batch.failures]]
        assert (left.int() - other.int()).abs().float().mean() < 0.5
    assert len([record for record in caplog.records if "DALI refused sample 3" in record.message]) == 1
    engine.close()


# Streams


def until(jobs: list[Job], error: Exception) -> Iterator[Job]:
    yield from jobs
    raise error


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_what_the_jobs_raise_comes_after_all_batches_before(count: int, shared: bool) -> None:
    source = pairs(JPEGS)
    engine: Engine = opened(source, batch_size=2)
    if shared:
        engine = SharingEngine(engine, Workers(source), lambda one: np.array([True, False]))  # type: ignore[arg-type]
    jobs = [job([number, number], step=number) for number in range(count)]
    stream = engine.stream(until(jobs, KeyError("the user's order")))
    assert [next(stream).job for _ in jobs] == jobs
    with pytest.raises(KeyError, match="the user's order"):
        next(stream)
    assert list(stream) == []
    assert len(list(engine.stream(jobs))) == count
    engine.close()


def test_what_a_source_raises_takes_the_place_of_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    source = pairs(JPEGS)
    fetch = Listed.fetch

    def failing(self: Listed, indices: np.ndarray) -> dict[str, Any]:
        if 3 in indices:
            raise gpupipe.DataError("the storage is gone")
        return fetch(self, indices)

    monkeypatch.setattr(Listed, "fetch", failing)
    engine = opened(source, batch_size=1)
    stream = engine.stream([job([number], step=number) for number in range(6)])
    assert [next(stream).job.step for _ in range(3)] == [0, 1, 2]
    with pytest.raises(gpupipe.DataError, match="the storage is gone"):
        next(stream)
    engine.close()


def test_a_new_stream_ends_an_older_one() -> None:
    engine = opened(pairs([*JPEGS[:3], ODD["GIF"]]), batch_size=1)
    jobs = [job([number], step=number) for number in range(4)]
    older = engine.stream(jobs)
    next(older)
    newer = engine.stream(jobs)
    assert list(older) == []
    assert [batch.job for batch in newer] == jobs
    engine.close()
    engine.close()
    assert [batch.columns["label"] for batch in engine.stream(jobs[:2])] == [[0], [1]]  # with threads of its own again
    engine.close()


def test_the_bad_row_of_a_sample_error_is_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = Listed.fetch

    def failing(self: Listed, indices: np.ndarray) -> dict[str, Any]:
        if 2 in indices:
            raise SampleError(2, self.location(2), "no such blob")
        return fetch(self, indices)

    monkeypatch.setattr(Listed, "fetch", failing)
    engine = opened(many())
    (made,) = engine.stream([job([0, 2, 1])])
    engine.close()
    assert {row: error.reason for row, error in made.failures.items()} == {1: "no such blob"}
    expected = truth(many(), job([0, 0, 1]))
    for row in (0, 2):
        assert_alike(made.columns["boxes"][row], expected.columns["boxes"][row])
        assert torch.equal(made.columns["mask"][0][row], expected.columns["mask"][0][row])
