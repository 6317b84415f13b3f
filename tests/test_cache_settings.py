from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gpupipe
from gpupipe import Cache, ConfigError
from gpupipe.sources.remote.cache import cache_settings, key_of, on_disk, parse_size
from gpupipe.sources.remote.cache.keys import block_size


@pytest.mark.parametrize(
    ("text", "size"), [("1.6T", 1_600_000_000_000), ("2 PiB", 2 * 1024**5), ("64gib", 64 * 1024**3), ("7B", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("argument", "settings"),
    [
        (None, None),
        ("auto", Cache()),
        ("1.6T", Cache(size=1_600_000_000_000)),
        (4096, Cache(size="4KiB")),
        ("./1T", Cache(folder="./1T")),
        (Path("/nvme"), Cache(folder=Path("/nvme"))),
        (Cache(size=5), Cache(size=5)),
    ],
)
def test_what_an_argument_asks_for(argument: object, settings: Cache | None) -> None:
    assert cache_settings(argument) == settings  # type: ignore[arg-type]


@pytest.mark.parametrize("argument", ["", True, -1, 0, 1.5, b"x"])
def test_no_cache_settings(argument: object) -> None:
    with pytest.raises(ConfigError):
        cache_settings(argument)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"size": "much"}, {"reserve": 1.0}, {"reserve": -1}, {"reserve": "5%"}, {"size": 0}])
def test_settings_check_themselves(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Cache(**wrong)  # type: ignore[arg-type]


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPIPE_CACHE", "/here")
    assert gpupipe.Cache().place == Path("/here/blocks")
    assert Cache(folder="/nvme").place == Path("/nvme/gpupipe-blocks")


def test_the_ranks_of_a_job_are_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert Cache().in_run().run != Cache().in_run().run != ""
    assert (joined := Cache().in_run()).in_run() is joined == Cache()
    monkeypatch.setenv("MASTER_ADDR", "node1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert Cache().in_run().run == Cache().in_run().run == "node1:29500"


def test_other_bytes_are_another_block() -> None:
    extent = (("s3://a/x.tar", 100, '"1"'), 10, 20)
    assert key_of(extent) == key_of((("s3://a/x.tar", 100, '"1"'), 10, 20))
    assert block_size(key_of(extent)) == 20
    others = [
        (("s3://b/x.tar", 100, '"1"'), 10, 20),  # the same name in another bucket
        (("s3://a/x.tar", 100, '"2"'), 10, 20),  # replaced under the same URL
        (("s3://a/x.tar", 100, '"1"'), 11, 20),
        (("s3://a/x.tar", 100, '"1"'), 10, 21),
        (("s3://a/x.tar\0", 100, '"1"'), 10, 20),
    ]
    assert len({key_of(extent), *map(key_of, others)}) == 6
    assert key_of((("http://a/x", 100, ""), 10, 20)) == "" == key_of((("s3://a/x", -1, '"1"'), 0, -1))


def test_space_is_handed_out_in_pages() -> None:
    assert on_disk(np.array([0, 1, 4088, 4089, 110_000])).tolist() == [4096, 4096, 4096, 8192, 110_592]
    assert replace(Cache(), size="1M").size == 1_000_000


@pytest.mark.parametrize("text", ["1.6X", "50%", "1_run"])
def test_what_begins_as_a_size_is_no_folder(text: str) -> None:
    with pytest.raises(ConfigError, match="is no size"):
        cache_settings(text)
