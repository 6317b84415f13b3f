"""Row 6: an epoch that two engines do in turn."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

import gpupipe
from gpupipe.decode import rendering
from gpupipe.decode.dali import feed as dali_feed
from gpupipe.decode.rendering import crops_of
from reliability.case import Case, Context, Row, expect, expect_equal
from reliability.data import Numbered

__all__ = ["ROWS"]

ENGINES = ("torch", "dali")
TOLERANCE = 0.5  # levels in the mean of an image, as the README states for random crops

Batch = tuple[np.ndarray, list[int], tuple[Any, ...]]


class Pictures(Numbered):
    """Waves of colour, another picture and size for each number."""

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        height, width = 40 + 7 * (index % 5), 40 + 11 * (index % 4)
        y, x = np.mgrid[0:height, 0:width]
        waves = [np.sin(x / (5 + channel + index % 3) + y / (9 - channel) + index) for channel in range(3)]
        pixels = (128 + 100 * np.stack(waves, axis=-1)).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=90, subsampling=0)
        return buffer.getvalue(), index


def open_dali_once() -> None:
    """DALI keeps threads and files for the life of the process."""
    with _open(Pictures(4), "dali", 1, 0) as loader:
        for _ in loader:
            pass


def in_turn(context: Context) -> None:
    """torch -> DALI -> torch and DALI -> torch -> DALI, each taking over at a random step."""
    dataset, batch = Pictures(context.random.randint(12, 30)), context.random.randint(1, 4)
    seed = context.random.randrange(2**32)
    whole = {engine: _part(dataset, engine, batch, seed, None, None)[0] for engine in ENGINES}
    _expect_same(whole["dali"], whole["torch"], "a whole epoch on DALI and on torch")
    for first, second in (ENGINES, ENGINES[::-1]):
        one, other = sorted(context.random.sample(range(1, len(whole["torch"])), 2))
        found, state = _part(dataset, first, batch, seed, None, one)
        more, state = _part(dataset, second, batch, seed, state, other - one)
        rest, _ = _part(dataset, first, batch, seed, state, None)
        _expect_same(found + more + rest, whole["torch"], f"{first}, from step {one} {second}, from {other} {first}")


def _open(dataset: Pictures, engine: Any, batch: int, seed: int) -> gpupipe.Loader:
    recipe = gpupipe.imagenet_train(32, dtype="uint8")
    return gpupipe.Loader(
        dataset, recipe, batch, True, seed=seed, engine=engine, device="cpu", num_workers=int(engine == "dali")
    )


def _part(
    dataset: Pictures, engine: str, batch: int, seed: int, state: str | None, steps: int | None
) -> tuple[list[Batch], str]:
    """So many batches from the state on, with what was planned for each, and the state then."""
    with _open(dataset, engine, batch, seed) as loader, _plans() as plans:
        if state is not None:
            loader.load_state_dict(json.loads(state))
        found, first = [], loader.state_dict()["position"]
        for images, labels in loader:
            positions = tuple(range(first, first + len(labels)))
            found.append((images.numpy().astype(np.float32), labels.tolist(), plans[positions]))
            first += len(labels)
            if len(found) == steps:
                break
        return found, json.dumps(loader.state_dict())


@contextmanager
def _plans() -> Iterator[dict[tuple[int, ...], tuple[Any, ...]]]:
    """What the engines plan meanwhile: positions -> windows, sizes, anchors and flips, as lists."""
    plans: dict[tuple[int, ...], tuple[Any, ...]] = {}

    def noted(schema: Any, views: Any, job: Any, columns: Any) -> Any:
        crops = crops_of(schema, views, job, columns)
        if job.epoch == 0:  # the next one's batches are made ahead
            plans[tuple(job.positions.tolist())] = tuple(
                np.asarray(part).tolist() for part in astuple(crops["image"][0])
            )
        return crops

    with mock.patch.object(rendering, "crops_of", noted), mock.patch.object(dali_feed, "crops_of", noted):
        yield plans


def _expect_same(found: list[Batch], wanted: list[Batch], what: str) -> None:
    expect_equal([labels for _, labels, _ in found], [labels for _, labels, _ in wanted], f"{what}: samples")
    for step, ((images, _, planned), (other_images, _, other_planned)) in enumerate(zip(found, wanted, strict=True)):
        expect_equal(planned, other_planned, f"{what}: what is done to step {step}")
        off = float(np.abs(images - other_images).mean(axis=(1, 2, 3)).max())
        expect(off <= TOLERANCE, f"{what}: an image of step {step} is {off:.2f} levels off in the mean")


ROWS = (
    Row(
        6,
        "Resume with another engine",
        "the same samples, the same boxes and flips, pixels within the stated tolerance",
        (Case("torch and DALI in turn", in_turn, prepare=open_dali_once, only=("gpupipe",)),),
    ),
)
