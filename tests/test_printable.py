"""Names that move a cursor, forge lines of a log or fill it: escaped and shortened wherever they are told."""

from __future__ import annotations

import json
import logging
import tarfile
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tars import jpeg, write_tar

import gpupipe
from gpupipe.errors import ConfigError, DataError, GpupipeError, LoaderTimeoutError, SampleError, StateError
from gpupipe.sources import open_source
from gpupipe.texts import MOST, MOST_MESSAGE, printable
from gpupipe.tools import cli

HOSTILE = "\x1b[31m\nFORGED \u202e\x07\udcff"
SAFE = r"\x1b[31m\nFORGED \u202e\x07\udcff"
PAIR = {"image": gpupipe.Image("path"), "label": gpupipe.Scalar("class")}


def unprintable(text: str, but: str = "") -> set[str]:
    return {letter for letter in text if not letter.isprintable() and letter not in but}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (HOSTILE, SAFE),
        ("a\r\t\x00\x7f\x85\u2028\u2066\U000e0041b", r"a\r\t\x00\x7f\x85\u2028\u2066\U000e0041b"),
        ("löwe 狮子 نمی\u200cخواهم",) * 2,
        (Path("/a b"), "/a b"),
    ],
)
def test_what_is_escaped(text: object, told: str) -> None:
    assert printable(text) == told
    assert printable(printable(text)) == told


@pytest.mark.parametrize("letter", ["x", "\x1b", "\U000e0041"])
def test_long_texts_keep_their_ends(letter: str) -> None:
    told = printable(f"begin{letter * 10**6}end")
    assert len(told) <= MOST
    assert told.startswith("begin")
    assert told.endswith("end")
    assert "characters)..." in told
    assert printable("x" * MOST) == "x" * MOST


@pytest.mark.parametrize(
    "make",
    [
        lambda text: DataError(f"{text} is bad"),
        lambda text: ConfigError(f"{text} is bad"),
        lambda text: StateError(f"{text} is bad"),
        lambda text: LoaderTimeoutError(f"{text} is bad"),
        lambda text: gpupipe.TranslationError(text, "b", "is bad"),
        lambda text: SampleError(0, text, "b", "is bad"),
        lambda text: SampleError(0, "a", text, "is bad"),
    ],
)
@pytest.mark.parametrize("text", [HOSTILE, HOSTILE * 10**5])
def test_errors_are_printable_and_short(make: Callable[[str], GpupipeError], text: str) -> None:
    told = str(make(text))
    assert not unprintable(told)
    assert r"\x1b[31m\nFORGED" in told
    assert told.rpartition(" (docs/")[0].endswith("is bad")
    assert len(told) < 2 * MOST_MESSAGE


def test_logs_are_printable_and_short(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("gpupipe")
    log.warning("%s has %d", HOSTILE, 3)
    log.warning("%s", Path(HOSTILE * 10**5))
    first, second = (record.getMessage() for record in caplog.records)
    assert first == f"{SAFE} has 3"
    assert len(second) <= MOST_MESSAGE
    assert not unprintable(second)


def folder(root: Path) -> Path:
    """A class and files of hostile names, one of them damaged."""
    made = root / f"root{HOSTILE}" / f"class{HOSTILE}"
    made.mkdir(parents=True)
    (made / f"good{HOSTILE}.jpg").write_bytes(jpeg(1))
    (made / f"bad{HOSTILE}.jpg").write_bytes(b"no image")
    (made / f"left out{HOSTILE}.gif").write_bytes(b"GIF")
    return made.parent


def shard(root: Path, *members: tuple[str, bytes]) -> Path:
    return write_tar(root / f"shard{HOSTILE}.tar", list(members), tarfile.PAX_FORMAT)


def table(root: Path, name: str, text: str) -> Path:
    (root / "good.jpg").write_bytes(jpeg(1))
    (root / name).write_text(text, "utf-8", "surrogateescape")
    return root / name


def archive(root: Path, name: str) -> Path:
    with zipfile.ZipFile(root / f"a{HOSTILE[:-1]}.zip", "w") as file:
        file.writestr(name, jpeg(1))
    return root / f"a{HOSTILE[:-1]}.zip"


def parquet(root: Path) -> Path:
    pq.write_table(pa.table({HOSTILE[:-1]: [jpeg(1)], "class": [1]}), root / "a.parquet")
    return root / "a.parquet"


def arrays(root: Path) -> Path:
    np.savez(root / "a.npz", **{"images": np.zeros((2, 8, 8, 3), np.uint8), "\x1b[31m": np.zeros(2)})
    return root / "a.npz"


IMAGE, LABEL = (f"k{HOSTILE}.jpg", jpeg(1)), (f"k{HOSTILE}.cls", b"1")
MANY = json.dumps({f"field number {number}": number for number in range(10**5)}).encode()
Make = Callable[[Path], Any]


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        pytest.param(lambda root: root / HOSTILE, None, id="nothing there"),
        pytest.param(lambda root: "pipe:" + HOSTILE, None, id="command"),
        pytest.param(lambda root: f"s3://bucket{HOSTILE}*/a.tar", None, id="URL"),
        pytest.param(
            lambda root: folder(root),
            {"image": gpupipe.Image(), "m": gpupipe.Mask(folder=".", suffix=".png")},
            id="files",
        ),
        pytest.param(lambda root: shard(root, IMAGE), None, id="no label"),
        pytest.param(lambda root: shard(root, LABEL), None, id="no image"),
        pytest.param(lambda root: shard(root, IMAGE, (LABEL[0], HOSTILE[:-1].encode())), None, id="label"),
        pytest.param(lambda root: shard(root, IMAGE, ("m.jpg", b""), LABEL), None, id="not side by side"),
        pytest.param(lambda root: shard(root, (f"k.{HOSTILE}", b""), (f"k.{HOSTILE}", b"")), None, id="twice"),
        pytest.param(lambda root: shard(root, ("\x1b" * 30_000 + ".jpg", b"")), None, id="long name"),
        pytest.param(lambda root: shard(root, (f"k.{HOSTILE}", b"")), {"x": gpupipe.Scalar("y")}, id="extension"),
        pytest.param(
            lambda root: shard(root, IMAGE, (f"k{HOSTILE}.json", json.dumps({HOSTILE: HOSTILE}).encode())),
            None,
            id="JSON",
        ),
        pytest.param(lambda root: shard(root, IMAGE, (f"k{HOSTILE}.json", MANY[:1_000_000])), None, id="cut JSON"),
        pytest.param(
            lambda root: shard(root, IMAGE, LABEL, (f"k{HOSTILE}.json", MANY)),
            {"image": gpupipe.Image(), "x": gpupipe.Scalar("json")},
            id="many fields",
        ),
        pytest.param(lambda root: table(root, "a.csv", "path,class\na.jpg,1,\x1b[31m\n"), PAIR, id="CSV cells"),
        pytest.param(lambda root: table(root, "a.csv", "\x1b[31m,class\na.jpg,1\n"), PAIR, id="CSV columns"),
        pytest.param(lambda root: table(root, "a.csv", "path,class\na.jpg,1\na.jpg,\x1b[31m\n"), PAIR, id="CSV labels"),
        pytest.param(lambda root: table(root, "a.csv", ",".join(map(str, range(10**5)))), PAIR, id="CSV, many columns"),
        pytest.param(lambda root: table(root, "a.jsonl", '{"path": \x1b[31m\n'), PAIR, id="JSON lines"),
        pytest.param(lambda root: table(root, "a.csv", 'path,class\n"\x1b[31m\n\u202e.jpg",1\n'), PAIR, id="CSV path"),
        pytest.param(parquet, PAIR, id="Parquet"),
        pytest.param(lambda root: archive(root, f"../{HOSTILE[:-1]}.jpg"), None, id="zip, out of it"),
        pytest.param(lambda root: archive(root, f"{HOSTILE[:-1]}.txt"), None, id="zip"),
        pytest.param(arrays, PAIR, id="npz"),
    ],
)
def test_data_of_any_kind_is_refused_in_one_line(tmp_path: Path, make: Make, fields: Any) -> None:
    """With the traceback of what raised it, and all that it was raised from."""
    data = make(tmp_path)
    with pytest.raises(GpupipeError) as raised:
        open_source(data, fields=fields)[0]
    assert not unprintable(str(raised.value))
    assert len(str(raised.value)) <= MOST_MESSAGE + MOST
    whole = "".join(traceback.format_exception(raised.value))
    assert not unprintable(whole, but="\n")
    assert "\nFORGED" not in whole


@pytest.mark.parametrize(
    "make", [folder, lambda root: shard(root, IMAGE, LABEL, ("m.jpg", b"no image"), ("m.cls", b"1"))]
)
def test_what_is_replaced_is_logged_in_one_line(tmp_path: Path, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    options = dict(engine="torch", device="cpu", num_workers=0, on_error="skip")
    with gpupipe.Loader(make(tmp_path), gpupipe.imagenet_train(32), 2, **options) as loader:
        assert sum(len(labels) for _, labels in loader) == 2
        (bad,) = loader.bad_samples
    assert r"\x1b[31m\nFORGED" in bad.location
    assert not unprintable(bad.location)
    assert any(record.getMessage().startswith("gpupipe: bad sample replaced") for record in caplog.records)
    assert not [record.getMessage() for record in caplog.records if unprintable(record.getMessage())]


@pytest.mark.parametrize("command", [["index"], ["index", "--no-labels"], ["pack"], ["show", "--html", "page.html"]])
def test_commands_print_lines_of_their_own_alone(
    tmp_path: Path, command: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *options = command
    cli.main([name, *options, str(folder(tmp_path)), *([f"out{HOSTILE}"] if name == "pack" else [])])
    out, err = capfd.readouterr()
    told = out + err + ((tmp_path / "page.html").read_text() if "--html" in options else "")
    assert r"\x1b[31m\nFORGED" in told
    assert not unprintable(told, but="\n")
    assert "\nFORGED" not in told
