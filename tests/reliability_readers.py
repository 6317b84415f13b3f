"""Readers of folders and shards that behave well or badly, for the scoreboard's tests; its processes import them."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from PIL import Image
from reliability import forms
from reliability.case import Context
from reliability.contenders.base import Stored, Stream
from reliability.data import gray
from reliability.rows import images


class Reads(Stream):
    """By Pillow and tarfile; says what it leaves out, or raises over it."""

    name = "reads"
    kinds = ("folder", "tar")

    @classmethod
    def write(cls, folder: Path, samples: Any, kind: str = "", beside: Any = None) -> None:
        forms.write(cls.kind_of(kind), folder, samples, beside)

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        for number, image in cls.samples(stored):
            try:
                yield number, cls.level(image)
            except Exception as error:
                if not stored.skip:
                    raise ValueError(f"bad sample {number:05d}") from error
                cls.say(number)

    @classmethod
    def level(cls, image: bytes) -> float:
        return gray(image)

    @classmethod
    def say(cls, number: int) -> None:
        print(f"bad sample {number:05d}", file=sys.stderr, flush=True)

    @classmethod
    def samples(cls, stored: Stored) -> Iterator[tuple[int, bytes]]:
        assert stored.local is not None
        for path in sorted(stored.local.glob("*/*.jpg")):
            yield int(path.stem), path.read_bytes()
        for path in sorted(stored.local.glob("*.tar")):
            with tarfile.open(path) as tar:
                for member in tar.getmembers():
                    if member.name.endswith(".jpg"):
                        yield int(Path(member.name).stem), cls.content(tar, member)
                cls.ended(path, tar.offset)

    @classmethod
    def content(cls, tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
        with contextlib.suppress(KeyError):  # a link that leads nowhere
            if (file := tar.extractfile(member)) is not None:
                return file.read()
        return b""

    @classmethod
    def ended(cls, path: Path, end: int) -> None:
        """Raise if a shard was cut there."""
        if path.read_bytes()[end:].strip(b"\0") or end + 1024 > path.stat().st_size:
            raise ValueError(f"{path} was cut")


class Rereads(Reads):
    """Decodes each image three times, so that what is slow takes too long on a fast machine, too."""

    name = "rereads"

    @classmethod
    def level(cls, image: bytes) -> float:
        return [gray(image) for _ in range(3)][-1]


class Mute(Reads):
    """Leaves out without a word."""

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        return super().read(replace(stored, skip=True))

    @classmethod
    def say(cls, number: int) -> None:
        pass

    @classmethod
    def ended(cls, path: Path, end: int) -> None:
        pass


class Blackens(Reads):
    """Gives something in the place of a bad image."""

    @classmethod
    def level(cls, image: bytes) -> float:
        try:
            return gray(image)
        except Exception:
            return 0.0


class Mixes(Reads):
    """Gives an image under the number of another."""

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        found = list(super().read(stored))
        for (number, _), (_, level) in zip(found, found[1:] + found[:1], strict=True):
            yield number, level


class Drops(Reads):
    """The last sample never comes."""

    @classmethod
    def samples(cls, stored: Stored) -> Iterator[tuple[int, bytes]]:
        return iter(list(super().samples(stored))[:-1])


class Doubles(Reads):
    """Each sample comes twice."""

    @classmethod
    def samples(cls, stored: Stored) -> Iterator[tuple[int, bytes]]:
        for one in super().samples(stored):
            yield one
            yield one


class Picky(Reads):
    """Takes RGB only."""

    @classmethod
    def level(cls, image: bytes) -> float:
        with Image.open(io.BytesIO(image)) as opened:
            if opened.mode != "RGB":
                raise ValueError(opened.mode)
        return gray(image)


class Nameless(Reads):
    """Its errors say nothing."""

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        try:
            yield from super().read(stored)
        except ValueError:
            raise ValueError("truncated") from None


class Hoards(Reads):
    """Takes a gigabyte for a bad image."""

    @classmethod
    def level(cls, image: bytes) -> float:
        try:
            return gray(image)
        except Exception:
            bytearray(b"x") * (1 << 30)
            raise


class FollowsLinks(Reads):
    """Out of the archive."""

    @classmethod
    def samples(cls, stored: Stored) -> Iterator[tuple[int, bytes]]:
        assert stored.local is not None
        for number, image in super().samples(stored):
            yield number, image or (stored.local / "../secret.jpg").read_bytes()


class Extracts(Reads):
    """Writes members where their names lead."""

    @classmethod
    def samples(cls, stored: Stored) -> Iterator[tuple[int, bytes]]:
        assert stored.local is not None
        for number, image in super().samples(stored):
            (stored.local / f"../{number:09d}.jpg").write_bytes(image)
            yield number, image


class Remembers(Reads):
    """Its index has the levels, and is believed."""

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        assert stored.local is not None
        index = stored.local / "index.json"
        if not index.exists():
            index.write_text(json.dumps(list(super().read(stored))))
        yield from map(tuple, json.loads(index.read_text()))


class Runs(Reads):
    """What the data says."""

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        for url in stored.urls:
            subprocess.run(url.removeprefix("pipe:"), shell=True, check=False, stdout=subprocess.DEVNULL)
        for path in stored.local.glob("*.tar") if stored.local else ():
            with tarfile.open(path) as tar:
                file = tar.extractfile(next(member for member in tar if member.name.endswith(".pyd")))
                assert file is not None
                pickle.loads(file.read())
        return iter(())


def allows_any_rate(context: Context) -> None:
    with mock.patch.object(images.gpupipe.loader.loader, "check_max_bad", return_value=1.0):
        images.rate(context, above=True)


def allows_none(context: Context) -> None:
    with mock.patch.object(images.gpupipe.loader.loader, "check_max_bad", return_value=0):
        images.rate(context, above=False)


def engines_differ(context: Context, what: int) -> None:
    """In which samples they refuse, in what comes for them, or in the pixels."""

    def seen(data: Any, engine: str, *arguments: Any) -> Any:
        found = list(same(data, "torch", *arguments))
        if engine == "dali":
            found[what] = ({0} ^ found[0], found[1][::-1], found[2] + 2)[what]
        return found

    same = images._seen
    with mock.patch.object(images, "_seen", seen):
        images.engines_agree(context)
