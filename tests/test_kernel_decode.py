"""The C++ kernel against Pillow, to the bit, in every variant that this CPU has."""

from __future__ import annotations

import io
import itertools
import os
from typing import Literal

import numpy as np
import pytest
import simplejpeg
from hostile import sampled
from images import encode, picture
from kernel_calls import decode_crop_resize
from PIL import Image, ImageOps

from gpupipe.host.limits import Limits
from gpupipe.kernels import Crops, crop_resize, decode_crops, native

pytestmark = pytest.mark.skipif(native.library() is None, reason=f"without the C++ kernels: {native.problem()}")

FilterName = Literal["bilinear", "bicubic"]
RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
VARIANTS = ["avx512", "avx2", "portable"]
Box = tuple[int, int, int, int]

KINDS: dict[str, dict[str, object]] = {
    "4:4:4": dict(subsampling=0),
    "4:2:2": dict(subsampling=1),
    "4:2:0": dict(subsampling=2),
    "4:4:0": dict(colorsubsampling="440"),
    "4:1:1": dict(colorsubsampling="411"),
    "gray": dict(mode="L"),
    "stored as RGB": dict(keep_rgb=True),
    "progressive": dict(progressive=True),
    "progressive 4:4:4": dict(progressive=True, subsampling=0),
    "restart markers": dict(restart_marker_blocks=3),
    "restart markers 4:2:2": dict(restart_marker_rows=1, subsampling=1),
    "coarse": dict(quality=20),
}


def jpeg(kind: str, height: int, width: int) -> bytes:
    """By Pillow, or what Pillow can't write by libjpeg-turbo's own interface."""
    options = dict(KINDS[kind])
    if "colorsubsampling" in options:
        return bytes(simplejpeg.encode_jpeg(picture(height, width), quality=85, **options))
    mode = str(options.pop("mode", "RGB"))
    return encode(picture(height, width), "JPEG", mode, **options)


def needs(variant: str) -> None:
    if variant not in native.variants():
        pytest.skip(f"this CPU lacks {variant}")


def by_pillow(image: Image.Image, box: Box, resized: tuple[int, int], name: FilterName) -> Image.Image:
    """The box resized along rows, then along columns: what Pillow does in one call, but for the order since 13."""
    top, left, height, width = box
    window = image.crop((left, top, left + width, top + height))
    for size in ((resized[1], height), (resized[1], resized[0])):
        window = window.resize(size, RESAMPLING[name])
    return window


def some_boxes(rng: np.random.Generator, height: int, width: int, count: int) -> list[Box]:
    boxes: list[Box] = [(0, 0, height, width)]
    for _ in range(count):
        tall, wide = (int(rng.integers(1, side + 1)) for side in (height, width))
        boxes.append((int(rng.integers(0, height - tall + 1)), int(rng.integers(0, width - wide + 1)), tall, wide))
    return boxes


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
def test_resize_is_pillows(variant: str, name: FilterName) -> None:
    needs(variant)
    rng = np.random.default_rng(0)
    for _ in range(150):
        height, width, out_height, out_width = (int(side) for side in rng.integers(1, 150, 4))
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        expected = by_pillow(Image.fromarray(pixels), (0, 0, height, width), (out_height, out_width), name)
        crops = Crops.of([(0, 0, height, width)], (out_height, out_width), bicubic=name == "bicubic")
        (image,) = crop_resize([pixels], crops, variant=variant)
        np.testing.assert_array_equal(image, np.asarray(expected), str((height, width, out_height, out_width)))


@pytest.mark.parametrize(("height", "width", "out"), [(1, 1, 224), (3000, 7, 64), (7, 3000, 64), (2, 900, 1)])
@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
def test_extreme_shapes(height: int, width: int, out: int, name: FilterName) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)
    expected = by_pillow(Image.fromarray(pixels), (0, 0, height, width), (out, out), name)
    for variant in native.variants():
        crops = Crops.of([(0, 0, height, width)], (out, out), bicubic=name == "bicubic")
        (image,) = crop_resize([pixels], crops, variant=variant)
        np.testing.assert_array_equal(image, np.asarray(expected))


def test_windows_of_pixels_are_resized_as_those_of_files() -> None:
    """Windows are views into whole images, wherever in these they lie."""
    data = jpeg("4:4:4", 60, 80)
    pixels = np.asarray(Image.open(io.BytesIO(data)))
    boxes = some_boxes(np.random.default_rng(3), 60, 80, 9)
    crops = Crops.of(boxes, (16, 20), flips=np.arange(10) % 2, resized=(20, 24), anchors=(2, 3), bicubic=True)
    windows = [pixels[top : top + height, left : left + width] for top, left, height, width in boxes]
    out = np.zeros((10, 16, 20, 3), np.uint8)
    assert crop_resize(windows, crops, out=out, threads=2) is out
    np.testing.assert_array_equal(out, decode_crops([data] * 10, [crops]).images[0])
    np.testing.assert_array_equal(crop_resize(windows[4:5], crops.row(4)), out[4:5])


@pytest.mark.parametrize(
    "window",
    [np.zeros((5, 6, 3)), np.zeros((5, 6), np.uint8), np.zeros((6, 5, 3), np.uint8), np.zeros((5, 6, 4), np.uint8)],
)
def test_windows_that_are_not_the_crops_are_refused(window: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"window 0 is .*, but uint8 \(5, 6, 3\) is needed"):
        crop_resize([window], Crops.of([(1, 1, 5, 6)], (4, 4)))
    with pytest.raises(ValueError, match=r"window 0 is uint8 \(0, 6, 3\)"):
        crop_resize([np.zeros((0, 6, 3), np.uint8)], Crops.of([(1, 1, 0, 6)], (4, 4)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 3), (17, 33), (64, 48), (121, 203)])
def test_decoded_boxes_are_pillows(kind: str, height: int, width: int) -> None:
    """Also beside the borders, where the chroma of neighbouring columns and rows counts."""
    data = jpeg(kind, height, width)
    whole = Image.open(io.BytesIO(data)).convert("RGB")
    rng = np.random.default_rng(height)
    boxes = some_boxes(rng, height, width, 20)
    flips = rng.integers(0, 2, len(boxes)).astype(bool)
    cubic = rng.integers(0, 2, len(boxes)).astype(bool)
    made = decode_crop_resize([data] * len(boxes), boxes, (24, 31), flips=flips, bicubic=cubic)
    assert made.failures == {}
    for box, flip, name, image in zip(boxes, flips, np.where(cubic, "bicubic", "bilinear"), made.images, strict=True):
        expected = by_pillow(whole, box, (24, 31), name)
        np.testing.assert_array_equal(image, np.asarray(ImageOps.mirror(expected) if flip else expected), str(box))


FACTORS = list(itertools.product(range(1, 5), repeat=2))


@pytest.mark.parametrize("luma", FACTORS, ids=str)
def test_all_mixes_of_sampling_factors_are_pillows_at_all_edges(luma: tuple[int, int]) -> None:
    """Those that libjpeg takes: an MCU has no more than 10 blocks, and each factor divides the largest."""
    taken = 0
    for mix in itertools.product([luma], FACTORS, FACTORS):
        divides = all(max(side) % one == 0 for side in zip(*mix, strict=True) for one in side)
        if sum(across * down for across, down in mix) > 10 or not divides:
            continue
        taken += 1
        for height, width in ((19, 37), (35, 66)):
            data = sampled(height, width, mix)
            whole = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
            for tall, wide in ((3, 1), (1, 2), (2, 3), (9, 5)):
                corners = itertools.product((0, (height - tall) // 2, height - tall), (0, 30, width - wide))
                boxes = [(top, left, tall, wide) for top, left in corners]
                made = decode_crop_resize([data] * len(boxes), boxes, (tall, wide), threads=1)
                assert made.failures == {}, mix
                for (top, left, _, _), image in zip(boxes, made.images, strict=True):
                    expected = whole[top : top + tall, left : left + wide]
                    np.testing.assert_array_equal(image, expected, f"{mix} {height} x {width}, {top}, {left}")
    assert taken > 0 or luma[0] * luma[1] > 8 or 3 in luma


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_the_resized_box_is_that_part(kind: str) -> None:
    """As for evaluation: resize the whole image, take the middle."""
    data = jpeg(kind, 121, 203)
    whole = Image.open(io.BytesIO(data)).convert("RGB")
    for resized, anchor in (((60, 101), (6, 26)), ((48, 80), (0, 0)), ((48, 80), (0, 32)), ((300, 500), (130, 222))):
        made = decode_crop_resize([data], [(0, 0, 121, 203)], (48, 48), resized=[resized], anchors=[anchor])
        expected = np.asarray(by_pillow(whole, (0, 0, 121, 203), resized, "bilinear"))
        top, left = anchor
        np.testing.assert_array_equal(made.images[0], expected[top : top + 48, left : left + 48])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_turns_the_image_before_the_box_is_cut(kind: str, orientation: int) -> None:
    data = jpeg(kind, 50, 81)
    tags = Image.Exif()
    tags[0x0112] = orientation
    stored = Image.open(io.BytesIO(data)).convert("RGB")
    stored.getexif().update(tags)
    upright = ImageOps.exif_transpose(stored)
    boxes = some_boxes(np.random.default_rng(orientation), upright.height, upright.width, 12)
    made = decode_crop_resize(
        [data] * len(boxes), boxes, (20, 30), orientations=[orientation] * len(boxes), sizes=[(50, 81)] * len(boxes)
    )
    assert made.failures == {}
    for box, image in zip(boxes, made.images, strict=True):
        np.testing.assert_array_equal(image, np.asarray(by_pillow(upright, box, (20, 30), "bilinear")), str(box))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("threads", [1, 2, 7, None])
def test_thread_counts_and_variants_give_the_same_batch_in_place(variant: str, threads: int | None) -> None:
    needs(variant)
    files = [jpeg(kind, 90 + i, 70 + 3 * i) for i, kind in enumerate([*KINDS, *KINDS])]
    boxes = [(i, 2 * i, 60, 25 + i) for i in range(len(files))]
    expected = [
        np.asarray(by_pillow(Image.open(io.BytesIO(data)).convert("RGB"), box, (32, 32), "bilinear"))
        for data, box in zip(files, boxes, strict=True)
    ]
    out = np.zeros((len(files), 32, 32, 3), np.uint8)
    made = decode_crop_resize(files, boxes, (32, 32), threads=threads, variant=variant, out=out)
    assert made.images is out
    assert made.failures == {}
    np.testing.assert_array_equal(out, np.stack(expected))


def test_nothing_is_written_beside_the_output() -> None:
    """Sizes that no vector divides, between guards."""
    data = jpeg("4:2:0", 60, 60)
    for width in (1, 2, 5, 21, 33, 43):
        for variant in native.variants():
            memory = np.full((3, 7, width, 3), 77, np.uint8)
            decode_crop_resize([data], [(0, 0, 60, 60)], (7, width), out=memory[1:2], variant=variant)
            assert (memory[0] == 77).all()
            assert (memory[2] == 77).all()
            assert (memory[1] != 77).any()


def test_damage_counts_where_it_is_decoded() -> None:
    """Bits flipped below the box change nothing, as for other decoders; a marker or an end there does."""
    data = bytearray(jpeg("4:4:4", 200, 64))
    box, at = (0, 0, 40, 64), len(data) - 40
    clean = decode_crop_resize([bytes(data)], [box], (32, 32))
    assert clean.failures == {}
    flipped = data.copy()
    flipped[at] = 0x55 if flipped[at] != 0x55 else 0x54
    np.testing.assert_array_equal(decode_crop_resize([bytes(flipped)], [box], (32, 32)).images, clean.images)
    marked = data.copy()
    marked[at : at + 2] = b"\xff\xc4"
    cut = data[:-30]
    for damaged, message in ((marked, "marker 0xc4"), (cut, "ends before the image does")):
        (failure,) = decode_crop_resize([bytes(damaged)], [box], (32, 32)).failures.values()
        assert failure.code == "damaged"
        assert message in failure.message
    garbled = data.copy()
    begin = data.index(b"\xff\xda") + 100
    garbled[begin : begin + 60] = b"\xff\xd9" * 30
    assert decode_crop_resize([bytes(garbled)], [box], (32, 32)).failures[0].code == "damaged"


def large() -> tuple[bytes, Image.Image]:
    data = jpeg("4:2:0", 700, 900)
    return data, Image.open(io.BytesIO(data)).convert("RGB")


@pytest.mark.parametrize("box", [(0, 0, 700, 900), (13, 27, 640, 800), (101, 203, 333, 444), (0, 0, 65, 65)])
def test_fast_decode_is_close_to_exact(box: Box) -> None:
    """And the same where the box is less than twice the output."""
    data, whole = large()
    exact, fast = (decode_crop_resize([data], [box], (64, 64), decode=how).images[0] for how in ("exact", "fast"))
    np.testing.assert_array_equal(exact, np.asarray(by_pillow(whole, box, (64, 64), "bilinear")))
    if box[2] < 128:
        np.testing.assert_array_equal(fast, exact)
    else:
        assert (fast != exact).any()
        difference = np.abs(fast.astype(int) - exact)
        assert difference.mean() < 2.5  # levels; a shift by half a pixel of the output makes 7
        assert np.percentile(difference, 99) < 16


def test_fast_decode_is_not_shifted() -> None:
    """A ramp stays where it is, whatever the box's start is modulo 8."""
    ramp = np.broadcast_to(np.linspace(0, 255, 640).astype(np.uint8)[None, :, None], (640, 640, 3))
    for pixels in (ramp, ramp.transpose(1, 0, 2)):
        data = encode(np.ascontiguousarray(pixels), quality=98)
        for start in range(8):
            box = (start, start, 600, 600)
            exact, fast = (
                decode_crop_resize([data], [box], (50, 50), decode=how).images[0] for how in ("exact", "fast")
            )
            assert np.abs(fast.astype(int) - exact).max() <= 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(windows=[(0, 0, 5)]), "windows has shape"),
        (dict(size=(0, 5)), "size="),
        (dict(flips=[True, False]), "flips has shape"),
        (dict(bicubic=[True, False]), "bicubic has shape"),
        (dict(decode="quick"), "decode='quick' must be one of exact, fast"),
        (dict(resized=[(8, 8)], anchors=[(1, 0)]), "image 0: the part of .* lies outside"),
        (dict(out=np.zeros((1, 8, 9, 3), np.uint8)), "out is uint8"),
        (dict(out=np.zeros((1, 8, 8, 3), np.float32)), "out is float32"),
        (dict(variant="mmx"), "variant='mmx': this CPU has"),
        (dict(encoded=[np.zeros((3, 3), np.uint8)]), "image 0 is uint8"),
        (dict(encoded=[np.zeros(6, np.uint8)[::2]]), "image 0 is uint8"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    call: dict[str, object] = dict(encoded=[jpeg("4:4:4", 20, 20)], windows=[(0, 0, 20, 20)], size=(8, 8))
    with pytest.raises(ValueError, match=message):
        decode_crop_resize(**(call | arguments))  # type: ignore[arg-type]


@pytest.mark.parametrize("box", [(-1, 0, 5, 5), (0, 0, 21, 5), (0, 16, 5, 5), (0, 0, 0, 5), (2**31 - 1, 0, 5, 5)])
def test_a_box_outside_the_image_fails_alone(box: Box) -> None:
    data = jpeg("4:4:4", 20, 20)
    made = decode_crop_resize([data, data], [box, (0, 0, 20, 20)], (8, 8))
    assert {row: failure.code for row, failure in made.failures.items()} == {0: "changed"}
    assert "outside" in made.failures[0].message
    np.testing.assert_array_equal(made.images[1], decode_crop_resize([data], [(0, 0, 20, 20)], (8, 8)).images[0])


def test_another_size_than_expected_fails() -> None:
    data = jpeg("4:4:4", 20, 30)
    made = decode_crop_resize([data] * 3, [(0, 0, 5, 5)] * 3, (8, 8), sizes=[(20, 30), (30, 20), (0, 0)])
    assert made.failures.keys() == {1}
    assert made.failures[1].message == "it is 30 x 20 pixels, but 20 x 30 were expected"


def test_limits() -> None:
    data = jpeg("progressive 4:4:4", 300, 300)
    box = [(0, 0, 300, 300)]
    for limits, message in (
        (Limits(max_pixels=300 * 300 - 1), "more than the 89999 that are allowed"),
        (Limits(max_memory=200_000), "more memory than allowed"),
        (Limits(max_scans=3), "more than 3 scans"),
    ):
        (failure,) = decode_crop_resize([data], box, (8, 8), limits=limits).failures.values()
        assert failure.code == "limit"
        assert message in failure.message
    assert decode_crop_resize([data], box, (8, 8)).failures == {}


def test_an_empty_batch() -> None:
    made = decode_crop_resize([], np.empty((0, 4)), (8, 8))
    assert made.images.shape == (0, 8, 8, 3)
    assert made.failures == {}


def test_it_works_after_a_fork() -> None:
    """The child has none of the parent's threads."""
    data = [jpeg("4:2:0", 64, 64)] * 8
    boxes = [(0, 0, 64, 64)] * 8
    expected = decode_crop_resize(data, boxes, (32, 32), threads=4).images
    child = os.fork()
    if child == 0:
        same = np.array_equal(decode_crop_resize(data, boxes, (32, 32), threads=4).images, expected)
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("orientation", [1, 6])
def test_several_crops_of_one_decoding_are_those_of_one_decoding_each(kind: str, orientation: int) -> None:
    rng = np.random.default_rng(len(kind))
    height, width = 83, 117
    data = [jpeg(kind, height, width)] * 6
    upright = (width, height) if orientation == 6 else (height, width)
    settings = dict(orientations=np.full(6, orientation))
    crops = [
        Crops.of(some_boxes(rng, *upright, 5), (24, 31), flips=rng.integers(0, 2, 6)),
        Crops.of(some_boxes(rng, *upright, 5)[::-1], (9, 7), bicubic=True),
        Crops.of(
            some_boxes(rng, *upright, 5), (10, 12), resized=np.full((6, 2), 20), anchors=rng.integers(0, 8, (6, 2))
        ),
    ]
    together = decode_crops(data, crops, **settings)
    assert not together.failures
    for one, made in zip(crops, together.images, strict=True):
        np.testing.assert_array_equal(made, decode_crops(data, [one], **settings).images[0])


def test_fast_decoding_shrinks_no_further_than_every_crop_allows() -> None:
    data = [jpeg("4:2:0", 320, 480)]
    whole = [(0, 0, 320, 480)]
    small, large = Crops.of(whole, (32, 48)), Crops.of(whole, (160, 240))  # by themselves shrunk 8 times, and twice
    together = decode_crops(data, [small, large], decode="fast").images
    np.testing.assert_array_equal(together[1], decode_crops(data, [large], decode="fast").images[0])
    alone, exact = (decode_crops(data, [small], decode=how).images[0].astype(int) for how in ("fast", "exact"))
    assert np.abs(together[0] - exact).mean() < np.abs(alone - exact).mean()


def test_a_crop_outside_fails_its_image_alone_in_all_crops() -> None:
    data = [jpeg("4:4:4", 30, 40)] * 3
    inside = [(0, 0, 30, 40)] * 3
    made = decode_crops(data, [Crops.of(inside, (8, 8)), Crops.of([*inside[:2], (10, 0, 30, 40)], (4, 4))])
    assert {row: failure.code for row, failure in made.failures.items()} == {2: "changed"}
    with pytest.raises(ValueError, match="crops is empty"):
        decode_crops(data, [])
