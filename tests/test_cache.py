"""What the disk cache does where all goes well. What goes wrong: rows 31 and 41 to 50, run by test_reliability.py."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from gpupipe import Cache
from gpupipe.sources.remote.cache import (
    BlockCache,
    folder,
    keep_alive,
    key_of,
    keys as keys_module,
    ledger as ledger_module,
    on_disk,
)
from gpupipe.sources.remote.cache.files import Blocks
from gpupipe.sources.remote.cache.ledger import Ledger
from gpupipe.tools.cli import main
from gpupipe.tools.cli.options import sized

SIZE = 5000
SPACE = on_disk(SIZE)


def keys_of(count: int, first: int = 0, bucket: str = "a", size: int = SIZE) -> list[str]:
    return [
        key_of(((f"s3://{bucket}/data/x.tar", 10**9, '"e"'), number, size)) for number in range(first, first + count)
    ]


def content(key: str) -> NDArray[np.uint8]:
    size = int(key.rpartition(".")[2])
    return np.random.default_rng(int(key[:24], 16)).integers(0, 256, size, np.uint8)


def fill(cache: BlockCache, keys: list[str], hold: bool = False) -> set[str]:
    cache.claim(keys, hold)
    return cache.put({key: content(key) for key in keys})


def readable(cache: BlockCache, keys: list[str]) -> list[int]:
    """The places of those that are there, with their bytes."""
    found = cache.read(keys)
    for key, data in found.items():
        assert not data.flags.writeable
        np.testing.assert_array_equal(data, content(key))
    assert cache.find(keys) == set(found)
    return [place for place, key in enumerate(keys) if key in found]


def files(cache: Cache) -> list[Path]:
    return sorted(path for path in cache.place.glob("??/*"))


@pytest.fixture
def settings(tmp_path: Path) -> Cache:
    return Cache(folder=tmp_path, size=6 * SPACE, reserve=0, run="mine")


@pytest.fixture
def cache(settings: Cache) -> Iterator[BlockCache]:
    cache = BlockCache(settings)
    yield cache
    cache.close()


def test_what_was_put_is_there_for_all(cache: BlockCache, settings: Cache) -> None:
    keys = keys_of(4)
    assert cache.find(keys) == set()
    assert cache.read(keys) == {}
    assert cache.claim(keys, hold=False) == (set(keys), set(), set())
    assert cache.put({key: content(key) for key in keys}) == set(keys)
    other = BlockCache(settings)
    assert readable(other, keys) == [0, 1, 2, 3]
    assert other.claim(keys, hold=False) == (set(), set(keys), set())
    other.close()
    assert cache.size() == 6 * SPACE


def test_only_what_is_claimed_is_stored(cache: BlockCache, settings: Cache) -> None:
    keys = keys_of(2)
    assert cache.put({keys[0]: content(keys[0])}) == set()
    assert cache.claim([], hold=True) == (set(), set(), set()) == (cache.find([]), cache.put({}), cache.wait([], 1))
    cache.claim(keys, hold=False)
    cache.give_back(keys[:1])
    assert cache.put({key: content(key) for key in keys}) == {keys[1]}
    assert len(files(settings)) == 1


def test_one_fetches_and_others_wait(cache: BlockCache, settings: Cache) -> None:
    other, keys = BlockCache(settings), keys_of(3)
    cache.claim(keys[:2], hold=False)
    assert other.claim(keys, hold=False) == ({keys[2]}, set(), set(keys[:2]))
    assert cache.claim(keys[:2], hold=False).elsewhere == set(keys[:2])  # its own threads are others, too
    assert other.wait(keys[:2], timeout=0.05) == set()
    later = threading.Timer(0.1, lambda: (cache.give_back(keys[1:]), cache.put({keys[0]: content(keys[0])})))
    later.start()
    assert other.wait(keys[:2], timeout=60) == {keys[0]}
    later.join()
    assert other.claim(keys[:2], hold=False) == ({keys[1]}, {keys[0]}, set())
    other.close()
    assert cache.claim(keys[1:], hold=False).mine == set(keys[1:])  # closing gives back


def test_what_was_used_least_recently_goes_first(cache: BlockCache) -> None:
    keys = keys_of(8)
    for key in keys[:6]:
        fill(cache, [key])
    assert cache.find([keys[0], keys[1]])
    fill(cache, keys[6:])
    assert readable(cache, keys) == [0, 1, 4, 5, 6, 7]


def test_what_is_held_stays(cache: BlockCache, settings: Cache) -> None:
    keys = keys_of(10)
    fill(cache, keys[:4], hold=True)
    assert fill(cache, keys[4:7]) == set(keys[4:6])  # as many as there is room for
    assert fill(cache, keys[7:]) == set(keys[7:9])  # in the place of those that nobody holds
    assert readable(cache, keys) == [0, 1, 2, 3, 7, 8]
    cache.drop(keys[:2])
    assert readable(cache, keys) == [2, 3, 7, 8]
    assert fill(cache, keys[:1], hold=True)
    assert cache.claim([keys[7]], hold=True).there  # what is there can be held, too
    assert fill(cache, keys[4:7]) == set(keys[4:6])
    assert readable(cache, keys) == [0, 2, 3, 4, 5, 7]
    assert sum(path.stat().st_blocks * 512 for path in files(settings)) == 6 * SPACE


def test_what_a_run_holds_it_is_told_at_once(cache: BlockCache, settings: Cache, tmp_path: Path) -> None:
    keys = keys_of(3)
    assert not cache.holds(keys[:1])  # it is not open
    fill(cache, keys[:2], hold=True)
    fill(cache, keys[2:])
    other = BlockCache(replace(settings, run="another"))
    assert not other.holds(keys[:1])
    assert other.size()
    told = [cache.holds(each) for each in (keys[:2], [*keys[:2], keys[0]], keys, keys_of(1, first=9))]
    assert told == [True, True, False, False]
    assert not other.holds(keys[:2])
    other.claim(keys[:1], hold=True)
    assert other.holds(keys[:1])
    other.close()
    for ledger in tmp_path.glob("**/ledger-*"):
        ledger.unlink()
    assert not cache.holds(keys[:1])  # `claim` makes another
    assert cache.claim(keys[:2], hold=True).there == set(keys[:2])
    assert cache.holds(keys[:2])


def test_a_run_drops_for_itself_alone(settings: Cache, tmp_path: Path) -> None:
    one, same = BlockCache(settings), BlockCache(settings)
    other = BlockCache(Cache(folder=tmp_path, size=6 * SPACE, reserve=0, run="another"))
    keys = keys_of(4)
    fill(one, keys, hold=True)
    other.claim(keys[:2], hold=True)
    same.drop(keys[:3])  # another process of the same run
    assert readable(one, keys) == [0, 1, 3]
    other.drop(keys)
    assert readable(one, keys) == [3]
    other.close(), same.close()
    later = BlockCache(Cache(folder=tmp_path, size=6 * SPACE, reserve=0, run="third"))
    assert fill(later, keys_of(9, first=10)) == set(keys_of(5, first=10))
    one.close()  # the run is over, and what it held is free
    last = BlockCache(Cache(folder=tmp_path, size=6 * SPACE, reserve=0, run="fourth"))
    assert fill(last, keys_of(6, first=20)) == set(keys_of(6, first=20))
    last.close(), later.close()


def test_a_later_run_of_the_same_name_holds_nothing_yet(settings: Cache) -> None:
    for first in range(3):
        cache, keys = BlockCache(settings), keys_of(6, first=10 * first)
        keep_alive(settings, owner := Owner())
        assert fill(cache, keys, hold=True) == set(keys)
        del owner
        cache.close()


def test_a_size_is_chosen_once_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpupipe")
    disk = os.statvfs(tmp_path)
    first = BlockCache(Cache(folder=tmp_path))
    size = first.size()
    free, reserve = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize // 20
    assert size == pytest.approx(min(free // 2, free - reserve), rel=0.1, abs=1 << 30)  # others write to this disk, too
    fill(first, keys_of(3))
    second = BlockCache(Cache(folder=tmp_path))
    assert second.size() == size
    first.close(), second.close()
    for path in Cache(folder=tmp_path).place.glob("ledger-*"):  # which is made anew
        path.unlink()
    assert BlockCache(Cache(folder=tmp_path)).size() == size
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert str(tmp_path) in caplog.text


def test_a_smaller_size_shrinks_it(settings: Cache, tmp_path: Path) -> None:
    cache, keys = BlockCache(settings), keys_of(6)
    fill(cache, keys[:4])
    fill(cache, keys[4:])
    cache.close()
    cache = BlockCache(Cache(folder=tmp_path, size=2 * SPACE + 1, reserve=0))
    assert cache.size() == 2 * SPACE + 1
    assert readable(cache, keys) == [4, 5]
    assert len(files(settings)) == 2
    cache.close()


def test_the_disks_reserve_is_left_free(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = os.statvfs(tmp_path)
    reserve = disk.f_bavail * disk.f_frsize - 64 * 10**6
    cache = BlockCache(Cache(folder=tmp_path, size="1T", reserve=reserve))
    keys = keys_of(4, size=40 * 10**6)
    assert len(cache.claim(keys, hold=False).mine) == 4
    assert len(cache.put(dict.fromkeys(keys, np.zeros(40 * 10**6, np.uint8)))) <= 1
    cache.close()
    caplog.clear()
    cache = BlockCache(Cache(folder=tmp_path / "other", reserve=2 * reserve))
    assert fill(cache, keys_of(2)) == set()
    assert "the disk has no more free than Cache(reserve=...) says" in caplog.text
    cache.close()


def test_for_a_block_above_the_size_nothing_is_removed(cache: BlockCache) -> None:
    keys, large = keys_of(6), keys_of(1, size=7 * SPACE)
    fill(cache, keys)
    assert fill(cache, large) == set()
    assert len(readable(cache, keys)) == 6


def test_a_fork_opens_it_anew(cache: BlockCache, settings: Cache) -> None:
    keys = keys_of(4)
    fill(cache, keys[:1])
    cache.claim(keys[3:], hold=False)
    child = os.fork()
    if child == 0:
        good = readable(cache, keys[:1]) == [0] and fill(cache, keys[1:2]) and cache.claim(keys[3:], False).elsewhere
        cache.close()
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert fill(cache, keys[2:3])
    assert readable(cache, keys) == [0, 1, 2]
    assert cache.put({keys[3]: content(keys[3])}) == {keys[3]}


def test_threads_share_it(cache: BlockCache) -> None:
    keys = keys_of(6)
    claimed: list[str] = []

    def work() -> None:
        for key in keys:
            if cache.claim([key], hold=False).mine:
                claimed.append(key)
                assert cache.put({key: content(key)})
            else:
                assert cache.wait([key], 60) == {key}
            assert cache.read([key])

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == sorted(keys)


class Owner:
    """Such as a loader."""


def test_the_main_process_keeps_a_run_alive(settings: Cache, tmp_path: Path) -> None:
    first = BlockCache(settings)
    fill(first, keys_of(4), hold=True)
    child = os.fork()
    if child == 0:
        owner = Owner()
        keep_alive(settings, owner)
        os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    first.close()  # as workers do at the end of an epoch
    for expected in (2, 6):
        other = BlockCache(replace(settings, run="other"))
        assert len(fill(other, keys_of(6, first=10 * expected), hold=False)) == expected
        other.close()
        if expected == 2:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["cache", *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_the_command_shows_and_clears(
    cache: BlockCache, settings: Cache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path)
    assert shown(capsys, str(tmp_path / "nowhere"))["taken"] == 0
    ours, theirs = keys_of(2), keys_of(3, bucket="b")
    fill(cache, ours, hold=True)
    fill(cache, theirs)
    found = shown(capsys, folder)
    assert found["taken"] == 5 * SPACE
    assert sorted(map(tuple, map(dict.values, found["data_sets"]))) == [
        ("s3://a/data", 2, 2 * SPACE, 2 * SPACE),
        ("s3://b/data", 3, 3 * SPACE, 0),
    ]
    (process,) = found["processes"]
    assert (process["pid"], process["size"]) == (os.getpid(), 6 * SPACE)
    assert shown(capsys, folder, "--clear", "s3://a/")["freed"] == 0  # a live run holds them
    assert shown(capsys, folder, "--clear", "s3://c/")["freed"] == 0
    assert shown(capsys, folder, "--clear")["freed"] == 3 * SPACE
    assert readable(cache, ours + theirs) == [0, 1]
    cache.close()
    (left,) = shown(capsys, folder)["data_sets"]
    assert (left["taken"], left["held"]) == (2 * SPACE, 0)  # the run is over
    assert main(["cache", folder, "--clear", "s3://a"]) == 0
    out = capsys.readouterr().out
    assert f"freed: {sized(2 * SPACE)}\n" in out
    assert f"folder: {settings.place}\n" in out
    assert files(settings) == []
    settings.place.chmod(0o777)
    assert main(["cache", folder]) == 2
    assert "others can write into it" in capsys.readouterr().err


def test_a_folder_is_no_url_to_clear_nor_a_file_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "--clear", str(tmp_path)]) == 2
    assert f"to clear the cache in a folder: gpupipe cache {tmp_path} --clear" in capsys.readouterr().err
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    for more in ([], ["--clear"], ["--clear", "s3://a"]):
        assert main(["cache", str(file), *more]) == 2
        assert f"a cache lies in a folder, and {file} is a file" in capsys.readouterr().err


def test_sizes_for_people() -> None:
    assert [sized(size) for size in (0, 999, 1000, 16_384, 1.6e12, 5e15)] == [
        *("0 B", "999 B", "1.0 kB", "16.4 kB", "1.6 TB", "5000.0 TB")
    ]


def test_what_a_file_system_cannot_do_is_told(settings: Cache, caplog: pytest.LogCaptureFixture) -> None:
    with mock.patch.object(folder, "_file_system", return_value="nfs4"):
        cache = BlockCache(settings)
        assert cache.size() == 0
    assert "network file system (nfs4)" in caplog.text
    assert folder._file_system(Path("/proc").stat().st_dev) == "proc"


def test_its_folders_are_spread_over_an_ext_file_system(cache: BlockCache, settings: Cache) -> None:
    fill(cache, keys_of(20))
    if shutil.which("lsattr") is None:
        pytest.skip("lsattr is not installed: it comes with e2fsprogs")
    told = subprocess.run(["lsattr", "-d", settings.place], capture_output=True, text=True, check=False)
    if told.returncode:
        pytest.skip(f"the folder's file system has no flags: {told.stderr.strip()}")
    if "ext" not in folder._file_system(settings.place.stat().st_dev):
        pytest.skip("the folder lies on another file system than ext4")
    assert "T" in told.stdout.split()[0]  # chattr(1): the top of a hierarchy, for the Orlov block allocator


def test_what_cannot_be_written_is_not_tried_again_at_once(cache: BlockCache) -> None:
    keys, tried = keys_of(6), mock.Mock(side_effect=OSError(errno.EDQUOT, "quota"))
    before = keys_of(6, first=6)
    fill(cache, before)
    with mock.patch.object(Blocks, "write", tried):
        for key in keys:
            assert fill(cache, [key]) == set()
    assert tried.call_count == 1
    assert len(readable(cache, before)) == 5  # no room is made for nothing
    assert cache.claim(keys, hold=False).mine == set(keys)


def test_what_a_transaction_could_not_give_up_the_next_one_does(cache: BlockCache, settings: Cache) -> None:
    keys = keys_of(2)
    cache.claim(keys, hold=False)
    other = BlockCache(settings)
    execute = Ledger.execute

    def full(self: Ledger, statement: str, *parameters: Any) -> int:
        if statement == "COMMIT":
            raise sqlite3.OperationalError("database or disk is full")
        return execute(self, statement, *parameters)

    with mock.patch.object(Ledger, "execute", full):
        cache.give_back(keys[:1])
        assert cache.put({keys[1]: content(keys[1])}) == set()
    assert files(settings) == []
    assert other.claim(keys, hold=False).elsewhere == set(keys)
    held = keys_of(1, first=5)
    assert fill(cache, held, hold=True)
    assert other.claim(keys, hold=False).mine == set(keys)
    other.close()
    with mock.patch.object(Ledger, "execute", full):
        cache.drop(held)
    assert readable(cache, held) == [0]
    cache.drop([])
    assert readable(cache, held) == []


def tidy(settings: Cache) -> bool:
    """Whether all files are listed, and the other way round."""
    later = BlockCache(replace(settings, run="later"))
    later.find(keys_of(1))
    later.close()
    (path,) = settings.place.glob("ledger-*.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as database:
        listed = {keys_module.named(*row) for row in database.execute("SELECT data_set, id, size FROM blocks")}
    return listed == {path.name for path in files(settings)}


def test_what_is_stored_while_a_ledger_is_made_anew(settings: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the one who looks for blocks, which it does not see any more: listed nowhere, it would never go."""
    keys, threads = keys_of(2), []

    def fill_and_let_another_store(path: Path, blocks: Blocks) -> None:
        look_for_blocks(path, blocks)
        threads.append(threading.Thread(target=other.put, args=({keys[1]: content(keys[1])},)))
        threads[0].start()
        threads[0].join(0.5)

    look_for_blocks = ledger_module._fill
    cache, other = BlockCache(settings), BlockCache(settings)
    fill(cache, keys[:1])
    other.claim(keys[1:2], hold=False)
    monkeypatch.setattr(ledger_module, "_fill", fill_and_let_another_store)
    (path,) = settings.place.glob("ledger-*.sqlite")
    ledger_module.condemn(path)
    threads[0].join()
    monkeypatch.undo()
    assert tidy(settings)
    assert readable(cache, keys)[:1] == [0]
    cache.close()
    other.close()
    assert tidy(settings)


def test_what_was_stored_beside_a_lost_ledger_is_settled_at_the_end(
    settings: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(2)
    cache = BlockCache(settings)
    cache.claim(keys, hold=False)
    (path,) = settings.place.glob("ledger-*.sqlite")
    ledger_module.condemn(path)
    opened = BlockCache._opened
    monkeypatch.setattr(BlockCache, "_opened", lambda self: opened(self) if self._session else None)
    assert cache.put({keys[0]: content(keys[0])}) == set()
    assert len(files(settings)) == 1
    monkeypatch.undo()
    cache.close()
    assert tidy(settings)


def test_blocks_that_begin_at_one_byte_are_told_apart_by_their_sizes(tmp_path: Path) -> None:
    keys = [*keys_of(1, size=1000), *keys_of(1, size=2000)]
    cache = BlockCache(Cache(tmp_path, size="1MB"))
    assert fill(cache, keys) == set(keys)
    assert readable(cache, keys) == [0, 1]
    cache.close()


def test_servers_with_one_bucket_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    named = []
    for endpoint in ("http://a:9000", "http://b:9000"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setattr(keys_module, "_sets", {})  # as in another process
        named += keys_of(1)
    assert len({*named}) == 2
