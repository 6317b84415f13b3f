"""What another user has put where indices, verdicts, tuned settings and states are kept: passed over or refused."""

from __future__ import annotations

import _pickle
import ast
import itertools
import json
import os
import pickle
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from images import write_folder
from tars import jpeg, write_samples

import gpupipe
from gpupipe.decode import tuned
from gpupipe.errors import DataError
from gpupipe.host import cache, files, system
from gpupipe.sources import open_source
from gpupipe.sources.storage import open_index, pack_strings, write_index

ANOTHER = 12345
ROOT = os.geteuid() == 0
root_only = pytest.mark.skipif(not ROOT, reason="only root can give files away")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache folder, which is not there yet."""
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "a" / "cache"))
    cache._passed_over.cache_clear()
    cache._elsewhere.cache_clear()
    yield tmp_path / "a" / "cache"
    cache._elsewhere.cache_clear()


def give_away(path: Path) -> None:
    """As another user has made it, or, where it can't be given to one, could have written it."""
    if ROOT:
        os.chown(path, ANOTHER, ANOTHER, follow_symlinks=False)
    else:
        path.chmod(0o777 if path.is_dir() else 0o666)


def written(path: Path) -> tuple[int, int]:
    """What another file in its place has not; that it is read changes neither."""
    facts = path.stat()
    return facts.st_ino, facts.st_mtime_ns


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_made_is_for_this_user_alone_whatever_the_umask(tmp_path: Path, folder: Path) -> None:
    before = os.umask(0)
    try:
        cache.remember("x", {"a": 1}, {"b": 2})
        root = write_folder(tmp_path / "data")
        beside = Path(open_source(root).index_path)
        with open(tmp_path / "t.csv", "w") as file:
            file.write(f"path,class\n{next(root.glob('*/*.jpg'))},1\n")
        fields = {"image": gpupipe.Image("path"), "label": gpupipe.Scalar("class")}
        kept = Path(open_source(tmp_path / "t.csv", fields=fields).index_path)
    finally:
        os.umask(before)
    assert [mode(folder), mode(folder.parent)] == [0o700, 0o700]
    assert [mode(path) & 0o022 for path in (beside, kept, *folder.glob("x-*.json"))] == [0, 0, 0]


@pytest.mark.parametrize("loose", [0o666, 0o664, 0o646])
def test_what_others_could_have_written_is_passed_over_and_said_once(
    folder: Path, loose: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = cache.remember("x", {"a": 1}, {"b": 2})
    assert cache.recall("x", {"a": 1}) == {"b": 2}
    path.chmod(loose)
    for _ in range(2):
        assert cache.recall("x", {"a": 1}) is None
        assert list(cache.everything("x")) == []
    assert caplog.text.count("passed over") == 1
    assert f"others can write into it (mode {loose:o})" in caplog.text
    cache.remember("x", {"a": 1}, {"b": 3})
    assert cache.recall("x", {"a": 1}) == {"b": 3}


def test_what_another_user_has_planted_is_passed_over(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    give_away(cache.remember("x", {"a": 1}, {"b": 2}))
    assert cache.recall("x", {"a": 1}) is None
    assert "passed over" in caplog.text


@pytest.mark.parametrize("made", ["loose", "another's", "another's link"])
def test_a_cache_folder_of_others_is_not_used(
    tmp_path: Path, folder: Path, made: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache.remember("x", {"a": 1}, {"b": 2})
    if made == "loose":
        folder.chmod(0o777)
    elif not ROOT:
        pytest.skip("only root can give files away")
    elif made == "another's":
        give_away(folder)
    else:
        folder.rename(tmp_path / "own")
        folder.symlink_to(tmp_path / "own")
        give_away(folder)
    there = sorted(os.listdir(folder))
    assert cache.recall("x", {"a": 1}) is None
    instead = cache.cache_folder()
    assert instead != folder
    assert mode(instead) == 0o700
    assert caplog.text.count("is not used") == 1
    cache.remember("x", {"a": 1}, {"b": 3})
    assert cache.recall("x", {"a": 1}) == {"b": 3}
    assert sorted(os.listdir(folder)) == there
    cache._remove(str(instead), os.getpid() + 1)
    assert instead.exists()
    cache._remove(str(instead), os.getpid())
    assert not instead.exists()


def test_a_sticky_folder_is_used_and_what_others_have_there_is_not(folder: Path) -> None:
    """As /tmp is: nobody can replace what is another's."""
    path = cache.remember("x", {"a": 1}, {"b": 2})
    folder.chmod(0o1777)
    assert cache.recall("x", {"a": 1}) == {"b": 2}
    give_away(path)
    assert cache.recall("x", {"a": 1}) is None


def planted(data: Path, **arrays: object) -> Path:
    """The data's index with other arrays, as fresh as it was."""
    path = Path(open_source(data).index_path)
    index = open_index(path)
    write_index(path, index.fingerprint, index.info, index.arrays | arrays)
    return path


@pytest.mark.parametrize("kind", ["folder", "shards"])
def test_an_index_that_another_has_planted_is_built_again(
    tmp_path: Path, folder: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "data").mkdir()
    data = write_folder(tmp_path / "data") if kind == "folder" else write_samples(tmp_path / "data" / "a.tar")
    labels = open_source(data).targets.tolist()
    path = planted(data, labels=np.zeros(len(labels), np.int64))
    assert not open_source(data).targets.any()
    give_away(path)
    assert open_source(data).targets.tolist() == labels
    assert "is stale (PermissionError" in caplog.text
    caplog.clear()
    assert open_source(data).targets.tolist() == labels
    assert not caplog.records
    assert path.stat().st_uid == os.geteuid()


@root_only
def test_users_who_share_a_folder_leave_each_other_the_index(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else each would build his own anew after the other's."""
    data = write_folder(tmp_path / "data")
    path = Path(open_source(data).index_path)
    give_away(path)
    os.chown(data, ANOTHER + 1, -1)
    facts = written(path)
    own = Path(open_source(data).index_path)
    assert own.parent == folder
    assert len(caplog.records) == 1
    caplog.clear()
    assert Path(open_source(data).index_path) == own
    assert written(path) == facts
    assert not caplog.records


@root_only
def test_the_index_of_the_datas_owner_is_taken(tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who may change the data needs no index for that."""
    data = write_folder(tmp_path / "data")
    path = Path(open_source(data).index_path)
    give_away(path)
    give_away(data)
    facts = written(path)
    open_source(data)
    assert written(path) == facts
    assert not caplog.records


@pytest.mark.parametrize("key", ["../secret/private.jpg", "class_0/../../secret/private.jpg", "/etc/private.jpg", ".."])
def test_no_key_of_an_index_leaves_the_root(tmp_path: Path, key: str) -> None:
    data = write_folder(tmp_path / "data")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "private.jpg").write_bytes(jpeg(1))
    source = open_source(data)
    blob, ends = pack_strings([key, *(source.key(index) for index in range(1, len(source)))])
    path = planted(data, keys=blob, key_offsets=ends)
    with pytest.raises(
        DataError, match=rf"the index {path} was not made of .*'{key}' does not lie in that folder; remove"
    ):
        open_source(data)
    assert open_source(data, rebuild=True).key(0) == source.key(0)


def test_names_with_dots_lie_below_the_root(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    (data / "class_0" / "a..jpg").write_bytes(jpeg(1))
    (data / "class_0" / "..b").mkdir()
    (data / "class_0" / "..b" / "c.jpg").write_bytes(jpeg(1))
    source = open_source(data)
    assert {"class_0/..b/c.jpg", "class_0/a..jpg"} <= {source.key(index) for index in range(len(source))}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (dict(labels=np.full(12, 3)), r"labels outside of \[0, 3\)"),
        (dict(labels=np.full(12, -1)), "labels outside"),
        (dict(labels=np.zeros(11, np.int64)), "several lengths"),
        (dict(sizes=np.zeros(13, np.int64)), "several lengths"),
        (dict(heights=np.zeros(1, np.int32)), "several lengths"),
        (dict(key_offsets=np.arange(13)[::-1].copy()), "whole names"),
        (dict(key_offsets=np.arange(13)), "whole names"),
    ],
)
def test_arrays_of_an_index_are_checked(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    data = write_folder(tmp_path / "data")
    planted(data, **arrays)
    with pytest.raises(DataError, match=message):
        open_source(data)


GOOD = {"engine": "torch", "num_workers": 1, "prefetch_factor": 2, "decoders": None}
DECODERS = {"cpu_share": 0.5, "cpu_workers": 1, "hw_decoder_load": 0.5, "crop_decode": None}
DALI = GOOD | {"engine": "dali", "decoders": DECODERS}


@pytest.mark.parametrize(
    ("settings", "taken"),
    [
        (GOOD, True),
        (DALI, True),
        (GOOD | {"num_workers": 3000}, False),
        (GOOD | {"num_workers": -1}, False),
        (GOOD | {"num_workers": True}, False),
        (GOOD | {"num_workers": "1"}, False),
        (GOOD | {"num_workers": 1.5}, False),
        (GOOD | {"prefetch_factor": 10**6}, False),
        (GOOD | {"prefetch_factor": 0}, False),
        (GOOD | {"engine": "dali"}, False),
        (GOOD | {"engine": "gpu"}, False),
        (GOOD | {"more": 1}, False),
        (GOOD | {"decoders": 3}, False),
        (DALI | {"engine": "torch"}, False),
        (DALI | {"decoders": DECODERS | {"cpu_workers": 3000}}, False),
        (DALI | {"decoders": DECODERS | {"hw_decoder_load": "1"}}, False),
        (DALI | {"decoders": DECODERS | {"crop_decode": 7}}, False),
        ([], False),
    ],
)
def test_values_of_kept_settings_are_checked(folder: Path, settings: object, taken: bool) -> None:
    import torch

    device = torch.device("cpu")
    cache.remember(tuned.KIND, tuned._key(device, system.default_workers()), {"settings": settings})
    assert (tuned.tuned(device) is not None) == taken


def test_nothing_that_is_kept_is_unpickled(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by what reads index, cache and state, nor by what that calls: every way into pickle raises."""
    import torch

    data, device = write_folder(tmp_path / "data"), torch.device("cpu")
    tuned.keep(device, tuned.Tuned("torch", 1, 2))
    options = dict(num_workers=0, engine="torch", device="cpu")
    with gpupipe.Loader(data, gpupipe.imagenet_train(32), 2, **options) as loader:
        next(iter(loader))
        state = json.dumps(loader.state_dict())

    def refused(*args: object, **more: object) -> None:
        raise AssertionError("unpickled")

    for module, name in itertools.product((pickle, _pickle), ("load", "loads", "Unpickler", "_loads", "_Unpickler")):
        monkeypatch.setattr(module, name, refused, raising=False)
    with pytest.raises(AssertionError, match="unpickled"):
        pickle.loads(b"")
    assert tuned.tuned(device) is not None
    with gpupipe.Loader(data, gpupipe.imagenet_train(32), 2, **options) as loader:
        loader.load_state_dict(json.loads(state))
        assert sum(len(labels) for _, labels in loader) == 10
    root = Path(gpupipe.__file__).parent
    for path in ("host/cache.py", "host/files.py", "sources/storage.py", "sources/building.py", "loader/state.py"):
        tree = ast.walk(ast.parse((root / path).read_text()))
        names = {alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names}
        assert not names & {"pickle", "marshal", "shelve", "dill"}


def test_a_private_folder_below_one_of_others(tmp_path: Path) -> None:
    """As of `urls` in a shared cache folder that is sticky."""
    (tmp_path / "urls").mkdir()
    (tmp_path / "urls").chmod(0o777)
    with pytest.raises(PermissionError, match="others can write into it"):
        files.private(tmp_path, "urls", "x")
    assert not (tmp_path / "urls" / "x").exists()
