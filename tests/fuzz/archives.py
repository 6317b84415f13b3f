"""Archives of files: tar as it is scanned, zip, and what stands in their members."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import numpy as np
from tars import jpeg

import gpupipe
from fuzz import mutators
from fuzz.harness import Finding, Target
from gpupipe.batch import Schema
from gpupipe.sources import open_source
from gpupipe.sources.shard_index import Scan, opened_shard
from gpupipe.sources.shards import wanted_members
from gpupipe.sources.tar import scan_tar

FIELDS = {"image": gpupipe.Image(), "label": gpupipe.Scalar(), "key": gpupipe.Key()}


def tar_seeds(scratch: Path) -> Sequence[bytes]:
    small = [jpeg(number, 8 + number, 9) for number in range(3)]
    found = []
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        for name in ("s/{}", "long/" * 30 + "{}", "ü/{}"):
            for label in ("cls", "json"):
                buffer = io.BytesIO()
                with tarfile.open(fileobj=buffer, mode="w", format=form, pax_headers={"comment": "x" * 20}) as tar:
                    for number, image in enumerate(small):
                        text = str(number) if label == "cls" else json.dumps({"label": number, "more": [1, {"a": "b"}]})
                        for ending, data in (("jpg", image), (label, text.encode())):
                            member = tarfile.TarInfo(f"{name.format(number)}.{ending}")
                            member.size = len(data)
                            if form == tarfile.PAX_FORMAT and number == 1:
                                member.pax_headers = {"mtime": "1.5", "size": str(len(data))}
                            tar.addfile(member, io.BytesIO(data))
                    link = tarfile.TarInfo("s/link.jpg")
                    link.type, link.linkname = tarfile.SYMTYPE, "../../secret"
                    tar.addfile(link)
                found.append(buffer.getvalue())
    return [*found, sparse(small[0])]


def sparse(data: bytes) -> bytes:
    """GNU's old kind, with a map of where its data lie."""
    member = tarfile.TarInfo("s/0.jpg")
    member.size, member.type = len(data), tarfile.GNUTYPE_SPARSE
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0%011o\0" % (0, len(data))
    header[483:495] = b"%011o\0" % (len(data) * 2)
    return checked(header) + data.ljust(-(-len(data) // 512) * 512, b"\0") + bytes(1024)


def checked(header: bytearray) -> bytes:
    """A header with the checksum that it should have."""
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return bytes(header)


WORDS = [b"ustar\x0000", b"ustar  \0", b"L", b"K", b"x", b"g", b"S", b"GNU.sparse.major=1\n", b"size=", b"path=",
         b"27 GNU.sparse.size=99999999\n", b"12 size=-5\n", b"../", b"\x80\0\0\0\0\0\0\0\xff\xff\xff\xff", b"\xff" * 12,
         b"././@LongLink", b'{"label": 1e400}', b'{"label": ' + b"9" * 5000 + b"}", b"\x1b[31m"]  # fmt: skip
PLAIN = mutators.plain(*WORDS)


def tar_mutated(draw, data, others):  # type: ignore[no-untyped-def]
    """The same with right checksums of headers, mostly: else it ends at the first one."""
    changed = bytearray(PLAIN(draw, data, others))
    if draw.random() < 0.5:
        for at in draw.sample(range(0, len(changed), 512), min(2, -(-len(changed) // 512))):
            header = changed[at : at + 512]
            if len(header) == 512:
                field = draw.choice(((0, 100), (124, 136), (156, 157), (257, 265), (345, 500)))
                size = field[1] - field[0]
                text = draw.choice(
                    (*WORDS, b"%011o" % draw.choice((0, 1, 511, 512, 1 << 20, (1 << 33) - 1)), draw.randbytes(size))
                )
                header[field[0] : field[1]] = text[:size].ljust(size, b"\0")
                changed[at : at + 512] = header
    if draw.random() < 0.9:
        for at in range(0, len(changed) - 511, 512):
            if changed[at + 257 : at + 262] == b"ustar":
                changed[at : at + 512] = checked(changed[at : at + 512])
    return bytes(changed)


def tar_check(scratch: Path) -> Callable[[bytes], Hashable]:
    path = scratch / "hostile.tar"
    scan = Scan(wanted_members(Schema.of(None)), "label")

    def check(data: bytes) -> Hashable:
        path.write_bytes(data)
        with opened_shard(path) as shard:
            part = scan.part(shard, lambda steps: None)
            members = list(scan_tar(shard.path, shard.read, shard.entry["size"]))
        with tarfile.open(path, "r:", errors="surrogateescape", encoding="utf-8") as tar:
            expected = [(one.name, one.offset_data, one.size) for one in tar if one.isreg()]
        if [tuple(member) for member in members] != expected:
            raise Finding(f"other members than tarfile's: {members} for {expected}")
        if any(member.offset + member.size > len(data) for member in members):
            raise Finding("a member beyond the end")
        return len(part.facts), (part.facts[:, 1] > 0).tolist()

    return check


def shard_check(scratch: Path) -> Callable[[bytes], Hashable]:
    """All of a source, whose index is kept beside it."""
    path = scratch / "hostile.tar"

    def check(data: bytes) -> Hashable:
        path.write_bytes(data)
        source = open_source(path, fields=FIELDS, rebuild=True)
        for index in range(len(source)):
            columns = source.fetch(np.array([index]))
            at = data.find(columns["image"].data[0].tobytes())
            if at < 0:
                raise Finding("bytes that are not in the file")
        return len(source)

    return check


def zip_seeds(scratch: Path) -> Sequence[bytes]:
    found = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as archive:
            archive.comment = b"a comment"
            for number in range(4):
                archive.writestr(f"{'ab'[number % 2]}/{number}.jpg", jpeg(number, 9, 8 + number))
        found.append(buffer.getvalue())
    return found


def zip_check(scratch: Path) -> Callable[[bytes], Hashable]:
    path = scratch / "hostile.zip"

    def check(data: bytes) -> Hashable:
        path.write_bytes(data)
        source = open_source(path, rebuild=True)
        read = 0
        for index in range(len(source)):
            try:
                made = source.fetch(np.array([index]))["image"].data[0].tobytes()
            except gpupipe.SampleError as error:
                if path.name not in str(error):
                    raise Finding(f"a message that does not name it: {error}") from error
                continue
            read += 1
            with zipfile.ZipFile(path) as archive:
                if made not in [_member(archive, name) for name in archive.namelist()]:
                    raise Finding("another content than zipfile's")
        return len(source), read

    return check


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        return archive.read(name)
    except Exception:
        return b""


ZIP_WORDS = (
    b"PK\3\4",
    b"PK\1\2",
    b"PK\5\6",
    b"PK\6\6",
    b"PK\6\7",
    b"../x.jpg",
    b"\xff\xff\xff\xff",
    b"\1\0\x10\0",
    b"\x1b[2J.jpg",
)

TARGETS = [
    Target("tar", tar_seeds, tar_check, tar_mutated, named="hostile.tar"),
    Target("shard", tar_seeds, shard_check, tar_mutated, named="hostile.tar"),
    Target("zip", zip_seeds, zip_check, mutators.plain(*ZIP_WORDS), named="hostile.zip"),
]
