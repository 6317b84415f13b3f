"""Rows 12 to 14, 18, 51 and 58: images that are damaged, odd or hostile."""

from __future__ import annotations

import io
import os
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import gpupipe
from reliability import forms
from reliability.case import Case, Context, NoFunction, Row, expect, expect_equal
from reliability.contenders.gpupipe_loader import GpupipeDaliStream
from reliability.data import encode, gray, picture, pictures
from reliability.rows.soundness import both, expect_sound, kinds, level_of, levels_of, make, names_of, read, sound

sys.path.append(str(Path(__file__).parents[3] / "tests"))

from hostile import EOI, bad_kinds, good_kinds, segments, with_size
from images import png16

__all__ = ["ROWS"]

SAMPLES = 12
OURS = ("gpupipe", "gpupipe-dali")
MEMORY, SECONDS = 512 << 20, 1.5  # that a bomb may take beside a clean epoch, of all processes


# 12: flipped bits.


def parts(image: bytes) -> dict[str, range]:
    """Where a JPEG's headers lie, its Huffman tables, and the scan."""
    found = segments(image)
    tables = [(begin, end) for marker, begin, end in found if marker == 0xC4]
    begin, end = tables[0]
    return {
        "header": range(2, found[-1][2]),
        "Huffman table": range(begin, end),
        "scan": range(found[-1][2], len(image)),
    }


def flipped(context: Context, image: bytes, part: str) -> bytes:
    """One bit is another."""
    at = context.random.choice(parts(image)[part])
    return image[:at] + bytes([image[at] ^ 1 << context.random.randrange(8)]) + image[at + 1 :]


def one_flip(context: Context, part: str) -> None:
    samples = pictures(SAMPLES)
    number = context.random.randrange(SAMPLES)
    good = levels_of(samples)
    samples[number] = flipped(context, samples[number], part)
    del good[number]
    sound(context, samples, good, {number: level_of(samples[number])})


def named(context: Context) -> None:
    """A cut file by the error, and by what is said where it is passed over."""
    samples = pictures(SAMPLES)
    number = context.random.randrange(SAMPLES)
    samples[number] = samples[number][: len(samples[number]) // 2]
    for kind in kinds(context):
        folder = make(context, samples, kind)

        def names(skip: bool, folder: Path = folder, kind: str = kind) -> None:
            found = read(context, folder, kind, skip)
            known = any(name in found.said for name in names_of(number))
            expect(known, f"{kind}: sample {number} is not named: {found.said[-300:]}")

        both(names)


# 13: odd files.


def cut_tail(image: bytes) -> bytes:
    return image[: -len(image) // 4]


BAD_FILES: dict[str, Callable[[bytes], bytes]] = {
    "0 bytes": lambda image: b"",
    "HTML named .jpg": lambda image: b"<html><body>404 not found</body></html>" * 20,
    "a cut tail": cut_tail,
}


def bad_file(context: Context, name: str) -> None:
    """One or two of them."""
    samples = pictures(SAMPLES)
    good = levels_of(samples)
    numbers = context.random.sample(range(SAMPLES), context.random.randint(1, 2))
    for number in numbers:
        samples[number] = BAD_FILES[name](samples[number])
        del good[number]
    sound(context, samples, good, dict.fromkeys(numbers))


def _exif(pixels: Any) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encode(pixels, exif=exif.tobytes())


def _cmyk(pixels: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert("CMYK").save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


ODD_FILES: dict[str, Callable[[Any], bytes]] = {
    "CMYK": _cmyk,
    "gray": lambda pixels: encode(pixels[..., 0]),
    "16-bit gray PNG": lambda pixels: png16(pixels[..., :1].astype(np.uint16) * 257),
    "EXIF-rotated": _exif,
    "GIF": lambda pixels: encode(pixels, "GIF"),
    "progressive": lambda pixels: encode(pixels, progressive=True),
}


def odd_file(context: Context, name: str) -> None:
    """Among others, in files named .jpg."""
    samples = pictures(SAMPLES)
    good = levels_of(samples)
    for number in context.random.sample(range(SAMPLES), 2):
        pixels = picture(number)
        samples[number] = ODD_FILES[name](pixels)
        # `convert` clips gray of 16 bits at 255, and makes it white
        good[number] = gray(encode(pixels[..., 0], "PNG") if "16" in name else samples[number])
    for kind in kinds(context):
        expect_sound(read(context, make(context, samples, kind), kind), good, {}, whole=True)


# 14: bombs.


def many_scans(side: int, count: int) -> bytes:
    """Progressive, its last scan `count` times."""
    image = encode(np.full((side, side), 90, np.uint8), progressive=True)
    begin = image.rindex(b"\xff\xda")
    return image[:-2] + image[begin:-2] * count + EOI


BOMBS: dict[str, Callable[[], bytes]] = {
    "a header of 65,500 x 65,500": lambda: with_size(encode(picture(0)), 65500, 65500),
    "a progressive header of 65,500 x 65,500": lambda: with_size(encode(picture(0), progressive=True), 65500, 65500),
    "thousands of scans": lambda: many_scans(1024, 4000),
}


def bomb(context: Context, name: str) -> None:
    """Refused, or decoded, at little cost, beside good ones, in a form of data."""
    samples = pictures(SAMPLES)
    good = levels_of(samples)
    number = context.random.randrange(SAMPLES)
    kind = kinds(context)[0]
    clean = make(context, samples, kind, "clean")
    expect_sound(read(context, clean, kind), good, {}, whole=True)
    seconds, memory = _cpu(), _memory()
    expect_sound(read(context, clean, kind), good, {}, whole=True)
    usual, at_rest = _cpu() - seconds, _memory()
    samples[number] = BOMBS[name]()
    del good[number]
    folder = make(context, samples, kind)

    def cheap(skip: bool) -> None:
        begun = _cpu()
        expect_sound(read(context, folder, kind, skip), good, {number: 90.0 if "scans" in name else None})
        took, grown = _cpu() - begun - usual, _memory() - at_rest
        expect(took < SECONDS, f"{took:.1f} s of CPU time more than without it")
        expect(grown < MEMORY, f"{grown >> 20} MiB more than without it, after {memory >> 20} at first")

    both(cheap)


def _cpu() -> float:
    """Seconds, of this process and the children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(part.ru_utime + part.ru_stime for part in used)


def _memory() -> int:
    """The most that it or one of the children that have ended has had."""
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


# 18: a rate of bad samples.


def _epoch_with(context: Context, bad: int, max_bad: Any, kind: str) -> tuple[Any, Exception | None, gpupipe.Loader]:
    samples = pictures(SAMPLES)
    for number in context.random.sample(range(SAMPLES), bad):
        samples[number] = samples[number][:300]
    folder = make(context, samples, kind, f"{bad} {max_bad}")
    data = forms.Photos(folder) if kind == "dataset" else str(folder / forms.NAMES[kind])
    recipe = gpupipe.Recipe((gpupipe.ResizeCenterCrop(8, 8),), dtype="uint8")
    options = {"engine": context.contender.engine, "device": "cpu", "num_workers": context.random.randint(0, 1)}
    given: list[int] = []
    with gpupipe.Loader(data, recipe, 4, True, on_error="skip", max_bad=max_bad, **options) as loader:
        try:
            for _, labels in loader:
                given += labels.tolist()
        except gpupipe.DataError as error:
            return given, error.with_traceback(None), loader
    return given, None, loader


def rate(context: Context, above: bool) -> None:
    """A share and a number, in each form of data: as many as there may be, and one more."""
    os.environ["GPUPIPE_CACHE"] = str(context.folder / "found")
    for kind in kinds(context):
        most = context.random.randint(1, SAMPLES - 2)
        for max_bad in (most, (most + 0.5) / SAMPLES):
            given, error, loader = _epoch_with(context, most + above, max_bad, kind)
            if not above:
                expect(error is None, f"{kind}: {most} bad of {SAMPLES}, max_bad={max_bad}: {error}")
                expect_equal(len(given), SAMPLES, f"{kind}: rows")
                expect_equal(len(set(given)), SAMPLES - most, f"{kind}: good samples that came")
                expect_equal(len(loader.bad_samples), most, f"{kind}: bad samples that are listed")
            else:
                expect(
                    isinstance(error, gpupipe.TooManyBadError), f"{kind}: {most + 1} bad, max_bad={max_bad}: {error}"
                )
                bad = [sample.location for sample in loader.bad_samples]
                expect(any(place in str(error) for place in bad), f"{kind}: none of {bad} is in: {error}")


# 51: headers.

BATCHES = (1, 2, 8, 32, 256)


def header_flips(context: Context) -> None:
    """One file of a batch, then eight in a data set of several batches."""
    for count in (1, 8):
        for kind in kinds(context):
            size = context.random.choice(BATCHES)
            flip_and_read(context, max(size, 2 * count), count, size, kind)


def all_flipped(context: Context) -> None:
    """A whole batch of damaged headers."""
    for kind in kinds(context):
        flip_and_read(context, 72, 64, 64, kind)


def flip_and_read(context: Context, total: int, count: int, batch: int, kind: str) -> None:
    sample = pictures(SAMPLES)
    samples = {number: sample[number % SAMPLES] for number in range(total)}
    levels = levels_of(sample)
    good = {number: levels[number % SAMPLES] for number in samples}
    bad: dict[int, float | None] = {}
    for number in context.random.sample(range(total), count):
        samples[number] = flipped(context, samples[number], "header")
        bad[number] = level_of(samples[number])
        del good[number]
    folder = make(context, samples, kind, f"{total} {count} {batch}")
    expect_sound(read(context, folder, kind, batch=batch), good, bad)
    with suppress(NoFunction):
        options = {"max_bad": 1.0} if context.contender.name in OURS else {}
        found = read(context, folder, kind, skip=True, batch=batch, options=options)
        expect(found.error is None, f"{kind}: {found.error}")
        expect_sound(found, good, bad)


# 58: engines.


def odd_ones(context: Context) -> dict[int, bytes]:
    """Good ones, and what is refused or what some decoders take; as many again with flipped headers."""
    files = [*pictures(SAMPLES).values(), *good_kinds().values(), *bad_kinds().values(), many_scans(64, 150)]
    files += [flipped(context, pictures(1)[0], "header") for _ in range(SAMPLES)]
    context.random.shuffle(files)
    return dict(enumerate(files))


def engines_agree(context: Context) -> None:
    """On what is bad, and on what comes in its place; in one form of data."""
    os.environ["GPUPIPE_CACHE"] = str(context.folder / "found")
    samples, kind = odd_ones(context), kinds(context)[0]
    folder = make(context, samples, kind)
    data = forms.Photos(folder) if kind == "dataset" else str(folder / forms.NAMES[kind])
    seed, batch = context.random.randrange(2**32), context.random.choice((3, 16, 64))
    first = _seen(data, "torch", seed, batch)
    expect(0.1 < len(first[0]) / len(samples) < 0.9, f"{len(first[0])} of {len(samples)} are bad: no test of it")
    second = _seen(data, "dali", seed, batch)
    expect_equal(second[0] ^ first[0], set(), f"{kind}: what one engine refuses and the other does not")
    expect_equal(second[1], first[1], f"{kind}: labels in the order in which they came")
    off = float(np.abs(second[2] - first[2]).max())
    expect(off <= APART_ENGINES, f"{kind}: an image is {off:.1f} levels off in the mean")


APART_ENGINES = 1.0


def _seen(data: Any, engine: Any, seed: int, batch: int) -> tuple[set[int], list[int], Any]:
    """The bad ones, the labels, and the mean level of each image."""
    recipe = gpupipe.Recipe((gpupipe.ResizeCenterCrop(16, 16),), dtype="uint8")
    options = {"on_error": "skip", "max_bad": 1.0, "seed": seed, "num_workers": int(engine == "dali")}
    labels, levels = [], []
    with gpupipe.Loader(data, recipe, batch, True, engine=engine, device="cpu", **options) as loader:
        for images, numbers in loader:
            labels += numbers.tolist()
            levels += images.float().mean((1, 2, 3)).tolist()
        return {sample.index for sample in loader.bad_samples}, labels, np.array(levels)


SOUND = (
    "nothing wrong is delivered and nothing is missing without a word: an error, or all others and a word on the bad "
    "ones; what the reference decoder (Pillow) takes may come as it has it"
)

ROWS = (
    Row(
        12,
        "Bits flipped in one of N JPEGs",
        SOUND,
        (
            *(Case(f"a bit of a {part}", partial(one_flip, part=part)) for part in ("header", "Huffman table", "scan")),
            Case("the bad file is named", named),
        ),
    ),
    Row(
        13,
        "Odd files",
        SOUND + "; those of good ones come right",
        (
            *(Case(name, partial(bad_file, name=name)) for name in BAD_FILES),
            *(Case(name, partial(odd_file, name=name)) for name in ODD_FILES),
        ),
    ),
    Row(
        14,
        "Bombs",
        f"refused, or decoded, within {SECONDS:g} s of CPU time and {MEMORY >> 20} MiB more than a clean epoch takes",
        tuple(Case(name, partial(bomb, name=name)) for name in BOMBS),
    ),
    Row(
        18,
        "A rate of bad samples",
        "above it the run stops with a list, below it goes on and reports: exact counts",
        tuple(
            Case(name, partial(rate, above=above), only=OURS)
            for name, above in (("as many as there may be", False), ("one more", True))
        ),
    ),
    Row(
        51,
        "Flipped bits in headers, in batches of 1 to 256",
        SOUND,
        (Case("some files", header_flips), Case("a batch of them", all_flipped)),
    ),
    Row(
        58,
        "What one engine refuses every engine refuses",
        "the same bad samples and the same substitutes on DALI and torch",
        (Case("hostile and odd files", engines_agree, prepare=GpupipeDaliStream.prepare, only=("gpupipe",)),),
    ),
)
