"""Which way each image of a batch takes on the CPU."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from images import encode, picture
from pillow_reference import render_reference

import gpupipe
from gpupipe.batch import Batch, Job
from gpupipe.decode import choose, rendering
from gpupipe.kernels import native
from gpupipe.plan import cropping

RECIPE = gpupipe.imagenet_train(32, dtype="uint8")
FILES = {
    "jpeg": encode(picture(60, 80)),
    "png": encode(picture(50, 40), "PNG"),
    "progressive": encode(picture(70, 30), progressive=True),
    "cmyk": encode(picture(40, 44), "JPEG", "CMYK"),
    "webp": encode(picture(33, 35), "WEBP", lossless=True),
    "cut": encode(picture(64, 64))[:-40],
}
SIZES = {"jpeg": (60, 80), "png": (50, 40), "progressive": (70, 30), "cmyk": (40, 44), "webp": (33, 35)}
needs_kernels = pytest.mark.skipif(native.library() is None, reason=f"without the C++ kernels: {native.problem()}")


def source() -> Any:
    return gpupipe.open_source([(data, label) for label, data in enumerate(FILES.values())])


def made(recipe: gpupipe.Recipe = RECIPE) -> Batch:
    rows = np.arange(len(FILES))
    return rendering.Rendering(source(), (recipe,), augmented=True)(Job(0, 0, rows, rows, whole=False))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What the kernel and the other decoders were asked for."""
    seen: dict[str, list[Any]] = {"kernel": [], "others": []}
    kernel, others = rendering.decode_crops, rendering.render

    def recorded_kernel(encoded: list[Any], *args: Any, **kwargs: Any) -> Any:
        seen["kernel"].append((len(encoded), kwargs))
        return kernel(encoded, *args, **kwargs)

    def recorded_others(data: Any, *args: Any) -> None:
        seen["others"] += [name for name, file in FILES.items() if file == data.tobytes()]
        others(data, *args)

    monkeypatch.setattr(rendering, "decode_crops", recorded_kernel)
    monkeypatch.setattr(rendering, "render", recorded_others)
    return seen


@needs_kernels
def test_the_kernel_takes_the_batch_and_others_what_it_refuses(calls: dict[str, list[Any]]) -> None:
    batch = made()
    assert [count for count, _ in calls["kernel"]] == [len(FILES)]
    assert calls["others"] == ["png", "cmyk", "webp"]  # of "cut" the header was found damaged when it was read
    assert list(batch.failures) == [list(FILES).index("cut")]


def test_without_the_kernels_others_take_all(no_kernels: None, calls: dict[str, list[Any]]) -> None:
    batch = made()
    assert calls == {"kernel": [], "others": list(SIZES)}
    assert list(batch.failures) == [list(FILES).index("cut")]
    assert list(batch.failures) == [list(FILES).index("cut")]


def test_the_pixels_are_the_references(cpu_path: str) -> None:
    batch = made()
    assert batch.columns["label"].tolist() == list(range(len(FILES)))
    for row, (name, (height, width)) in enumerate((name, SIZES.get(name, (0, 0))) for name in FILES):
        if name in SIZES:
            sides = (np.array([height], np.int32), np.array([width], np.int32))
            expected = render_reference(FILES[name], cropping(RECIPE, 0, 0, np.array([row]), *sides))
            np.testing.assert_array_equal(batch.columns["image"][0][row], expected, name)


@needs_kernels
@pytest.mark.parametrize("decode", ["exact", "fast"])
def test_the_recipe_says_how_to_decode(decode: Any, calls: dict[str, list[Any]]) -> None:
    made(gpupipe.imagenet_train(32, dtype="uint8", decode=decode))
    assert [arguments["decode"] for _, arguments in calls["kernel"]] == [decode]


@needs_kernels
def test_what_costs_too_much_is_not_handed_on(calls: dict[str, list[Any]]) -> None:
    """Pillow would decode it all the same, or take minutes before it gives up."""
    bomb = bytearray(FILES["jpeg"])
    sizes = bomb.index(b"\xff\xc0") + 5
    bomb[sizes : sizes + 4] = (65_500).to_bytes(2, "big") * 2
    only = np.arange(1)
    bombs = gpupipe.open_source([(bytes(bomb), 0)])
    batch = rendering.Rendering(bombs, (RECIPE,), augmented=True)(Job(0, 0, only, only, whole=False))
    assert "65500 x 65500 pixels, more than the 178,956,970 that are allowed" in str(batch.failures[0])
    assert calls["others"] == []


def test_the_fallback_is_said_once(no_kernels: None, caplog: pytest.LogCaptureFixture) -> None:
    choose._say_without_kernels.cache_clear()
    with caplog.at_level(logging.WARNING, "gpupipe"):
        for _ in range(2):
            gpupipe.Loader(source(), RECIPE, engine="torch", device="cpu", num_workers=0).close()
    said = [record.getMessage() for record in caplog.records if "C++ kernels" in record.getMessage()]
    assert len(said) == 1
    assert "do this" in said[0]
    choose._say_without_kernels.cache_clear()
