"""Parquet's footers and pages, and lists of samples as text."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tars import jpeg

import gpupipe
from fuzz import mutators
from fuzz.harness import Finding, Target
from fuzz.stores import rows
from gpupipe.batch import MISSING
from gpupipe.sources import open_source

FILES = [jpeg(number, 6, 7 + number) for number in range(3)] * 4
FIELDS = {
    "image": gpupipe.Image(source="image"),
    "label": gpupipe.Scalar(source="label"),
    "text": gpupipe.Text(source="text"),
}


def parquet_seeds(scratch: Path) -> Sequence[bytes]:
    table = pa.table({"image": FILES, "label": list(range(len(FILES))), "text": ["a", "ü", "c" * 9] * 4})
    struct = table.set_column(0, "image", pa.array([{"bytes": one, "path": "x"} for one in FILES]))
    found = []
    for columns in (table, struct):
        for options in (
            {},
            {"compression": "none"},
            {"row_group_size": 5},
            {"use_dictionary": False, "data_page_version": "2.0"},
        ):
            buffer = io.BytesIO()
            pq.write_table(columns, buffer, **options)
            found.append(buffer.getvalue())
    return found


def parquet_check(scratch: Path) -> Callable[[bytes], Hashable]:
    path = scratch / "hostile.parquet"

    def check(data: bytes) -> Hashable:
        path.write_bytes(data)
        made = rows(open_source(path, fields=FIELDS, rebuild=True), "hostile.parquet")
        if not any(row is not None for row in made):
            return "none"
        try:
            table = pq.read_table(io.BytesIO(data), use_threads=False)
            images = [one["bytes"] if isinstance(one, dict) else one for one in table["image"].to_pylist()]
            labels = table["label"].to_pylist()
        except Exception as error:
            return f"Arrow refuses: {type(error).__name__}"
        for index, row in enumerate(made):
            label = MISSING if labels[index] is None else labels[index]
            if row is not None and (_bytes(row["image"]) != images[index] or row["label"] != label):
                raise Finding("other values than Arrow's")
        return len(made), sum(row is None for row in made)

    return check


def _bytes(image: object) -> bytes | None:
    """Those of a cell; None where it is null."""
    return image.tobytes() if isinstance(image, np.ndarray) else None


NUMBER = re.compile(r"-?[0-9]+([.][0-9]+)?")
LINES = [f"a/{number}.jpg" for number in range(4)]


def list_seeds(scratch: Path) -> Sequence[bytes]:
    (scratch / "a").mkdir(exist_ok=True)
    for number, name in enumerate(LINES):
        (scratch / name).write_bytes(FILES[number])
    comma = "image,label,text\n" + "".join(f'{name},{number},"t, {number}"\n' for number, name in enumerate(LINES))
    objects = [json.dumps({"image": name, "label": number, "text": "ü\n"}) for number, name in enumerate(LINES)]
    spread = comma.replace("\n", "\r\n").replace("t, ", 'a ""t""\n, ') + '"a/0.jpg",-1.50,\r\n\r\na/1.jpg,"2",""\r\n'
    several = [*objects[:1], "", *(one.replace(": ", ":\t") for one in objects[1:]), '{"label": 2.5, "text": null}']
    files = [comma.encode(), b"\xef\xbb\xbf" + spread.encode()]
    return [*(b"c" + one for one in files), *(b"j" + "\n".join(lines).encode() for lines in (objects, several))]


def list_check(scratch: Path) -> Callable[[bytes], Hashable]:
    paths = {name: scratch / f"hostile.{name}" for name in ("csv", "jsonl")}

    def check(data: bytes) -> Hashable:
        path = paths["csv" if data[:1] == b"c" else "jsonl"]
        path.write_bytes(data[1:])
        made = rows(open_source(path, fields=FIELDS, rebuild=True), "")
        images = [row["image"] for row in made if row is not None]
        if any(isinstance(image, np.ndarray) and image.tobytes() not in FILES for image in images):
            raise Finding("a file from elsewhere")
        truth = READ[path.suffix](data[1:].decode("utf-8-sig", "replace"))  # in columns of no field
        if len(truth) != len(made):
            raise Finding(f"{len(made)} rows of {len(truth)}")
        for row, there in zip(made, truth, strict=True):
            if row is not None:
                _compare(row, there)
        return len(made), sum(row is None for row in made)

    return check


def _comma_separated(text: str) -> list[dict[str, Any]]:
    """Lines without anything are none before the names, either, where Python's reader takes the first for the names."""
    return list(csv.DictReader(io.StringIO(text.lstrip("\r\n"), newline="")))


def _objects(text: str) -> list[dict[str, Any]]:
    """One behind the other: that each has a line is not asked for."""
    found, at, decoder = [], 0, json.JSONDecoder()
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        one, at = decoder.raw_decode(text, at)
        found.append(one)
    return found


READ = {".csv": _comma_separated, ".jsonl": _objects}


def _compare(row: Mapping[str, Any], there: Mapping[str, Any]) -> None:
    """A row with what Python's own readers find."""
    image, text, label = (there.get(name) for name in ("image", "text", "label"))
    if isinstance(row["image"], np.ndarray) and image in LINES and row["image"].tobytes() != FILES[LINES.index(image)]:
        raise Finding(f"another image than {image}")
    if row["text"] is not MISSING and row["text"] != text:
        raise Finding(f"another text than {text!r:.100}: {row['text']!r:.100}")
    is_number = row["label"] is not MISSING and NUMBER.fullmatch(str(label))
    if is_number and float(row["label"]) != float(label):
        raise Finding(f"another label than {label!r:.100}: {row['label']!r:.100}")


JSON = (
    b'{"image": ',
    b"[" * 3000,
    b'"\\ud800"',
    b"1e999",
    b"NaN",
    b"null",
    b"true",
    b'"\n',
    b",,",
    b"../",
    b"/etc/hostname",
    b"\xef\xbb\xbf",
    b"\0",
    b"\x1b]0;x\7",
    b'""""',
)

TARGETS = [
    Target(
        "parquet",
        parquet_seeds,
        parquet_check,
        mutators.plain(b"PAR1", b"\x15\x04\x19", b"\x18\x06schema", b"\xff\xff\xff\xff\x0f"),
        named="hostile.parquet",
    ),
    Target("lists", list_seeds, list_check, mutators.plain(*JSON), named="hostile."),
]
