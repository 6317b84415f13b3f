"""What `open_source` makes of a path or an object, and what it says of those that are no data here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.utils.data
from images import write_folder
from tars import jpeg, write_samples, write_tar
from torchvision.datasets import DatasetFolder, ImageFolder

import gpupipe
from gpupipe.errors import ConfigError, DataError
from gpupipe.sources import DatasetSource, FolderSource, ShardSource, open_source
from gpupipe.tools.pack import PackSettings, pack


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("images"), classes=2, per_class=4)


class TestFolderOfShards:
    @pytest.fixture
    def packed(self, root: Path, tmp_path: Path) -> Path:
        source = open_source(root)
        assert isinstance(source, FolderSource)
        pack(source, tmp_path / "packed", PackSettings(samples_per_shard=3), 1)
        return tmp_path / "packed"

    def test_what_pack_wrote_is_opened_by_its_folder(self, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = open_source(str(packed / "shard-{000000..000002}.tar"))
        monkeypatch.chdir(packed.parent)
        for name in (packed, str(packed), "packed", "./packed/"):
            source = open_source(name)
            assert isinstance(source, ShardSource)
            assert source.fingerprint == expected.fingerprint
            assert source.classes == ["class_0", "class_1"]
            assert [source.key(i) for i in range(len(source))] == [expected.key(i) for i in range(8)]

    def test_shards_of_any_origin_come_in_the_order_of_their_names(self, tmp_path: Path) -> None:
        for name in ("b", "a", "c"):
            write_samples(tmp_path / f"{name}.tar")
        (tmp_path / "._a.tar").write_bytes(b"what macOS leaves")
        (tmp_path / "d.tar.tmp").write_bytes(b"being written")
        source = open_source(tmp_path)
        assert isinstance(source, ShardSource)
        assert [Path(shard).name for shard in source.shards] == ["a.tar", "b.tar", "c.tar"]

    def test_label_field_is_theirs(self, tmp_path: Path) -> None:
        fields = json.dumps({"label": 1, "fine": 7}).encode()
        write_tar(tmp_path / "s.tar", [("a.jpg", jpeg(0)), ("a.json", fields)])
        assert open_source(tmp_path).targets.tolist() == [1]
        assert open_source(tmp_path, label_field="fine").targets.tolist() == [7]

    def test_an_interrupted_packing_is_told(self, packed: Path) -> None:
        (packed / "shard-000001.tar").rename(packed / "shard-000001.tar.tmp")
        with pytest.raises(DataError, match=r"lacks 1 of its 3 files, the first shard-000001\.tar: .*interrupted"):
            open_source(packed)
        assert len(open_source(str(packed / "*.tar"))) == 5
        (packed / ".gpupipe-pack.json").write_text("[]")
        with pytest.raises(DataError, match=r"\.gpupipe-pack\.json can't be read"):
            open_source(packed)
        (packed / ".gpupipe-pack.json").write_text('{"seed": 0}')  # as written before it told the number of shards
        assert len(open_source(packed)) == 5

    def test_shards_beside_images_are_ambiguous(self, root: Path, tmp_path: Path) -> None:
        folder = shutil.copytree(root, tmp_path / "both")
        write_samples(folder / "old.tar")
        with pytest.raises(ConfigError, match=r"old\.tar\) and class folders with images \(class_0/img_0\.jpg\)"):
            open_source(folder)
        (folder / "old.tar").unlink()
        assert isinstance(open_source(folder), FolderSource)

    def test_folders_without_images_do_not_count(self, tmp_path: Path) -> None:
        write_samples(tmp_path / "a.tar")
        (tmp_path / "logs" / "more").mkdir(parents=True)
        (tmp_path / "logs" / "more" / "log.txt").touch()
        assert isinstance(open_source(tmp_path), ShardSource)

    def test_shards_one_folder_down_are_pointed_at(self, tmp_path: Path) -> None:
        for split in ("train", "val"):
            (tmp_path / split).mkdir()
            write_samples(tmp_path / split / "a.tar")
        with pytest.raises(ConfigError, match=rf"2 of its folders hold \.tar shards: pass one, as {tmp_path}/train"):
            open_source(tmp_path)
        (tmp_path / "val" / "a.tar").unlink()
        (tmp_path / "val" / "a.jpg").write_bytes(jpeg(0))
        with pytest.raises(DataError, match="no images in 1 of 2 class folders"):
            open_source(tmp_path)

    def test_videos_without_their_field_are_pointed_at(self, tmp_path: Path) -> None:
        (tmp_path / "a.mp4").touch()
        with pytest.raises(DataError, match=r"no class folders .*; of videos pass fields=.*gpupipe\.Frames"):
            open_source(tmp_path)
        (tmp_path / "run").mkdir()
        (tmp_path / "a.mp4").rename(tmp_path / "run" / "a.mp4")
        with pytest.raises(DataError, match=r"no images in 1 of 1 .*; of videos pass fields=.*gpupipe\.Frames"):
            open_source(tmp_path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "data is an empty path"),
        (["a.tar", ""], "data is an empty path"),
        ("data.7z", "an archive .*unpack it"),
        ("train.FEATHER", r"a table of a kind .* \(encoded bytes, label\)"),
        ("labels.txt", "a list in a text file .* columns=\\['image', 'label'\\]"),
        ("images.zarr", "arrays, .* write them to .npy files"),
        (["a.npz", "b.npz"], r"'a\.npz' is a store in a list: pass it by itself"),
        ("train.tfrecord", "a kind of store"),
        ("film.mp4", "a video"),
        ("cat.jpg", "is an image, without a label: pass a folder"),
        ("CAT.PNG", "is an image"),
        (["a.jpg", "b.jpg"], r"'a\.jpg' is an image, without a label"),
        (["a.tar", "b.parquet"], r"'b\.parquet' is Parquet, which is not read together"),
        (["a.tar", "b.csv"], r"'b\.csv' is a table in a list: pass it by itself"),
        (Path("s3://bucket/train"), "is a URL or command"),
        ("https://host/train.zip", "is a store, and those are read on a disk only"),
        ("s3://bucket/cat.jpg", "is an image, without a label"),
        ("https://host/a.7z?key=secret", r"data: 'https://host/a\.7z\?\.\.\.' is an archive"),
        (["s3://bucket/a.tar", "b.tar"], r"data has URLs \(s3://bucket/a\.tar\) and paths \(b\.tar\)"),
        ("file:///data/a.tar", "is a URL or command"),
        ("pipe:curl host", "is a URL or command"),
    ],
    ids=str,
)
def test_paths_of_other_kinds(path: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        open_source(path)
    if path and isinstance(path, str) and ":" not in path:  # nor where it is there
        (tmp_path / path).write_bytes(b"7z")
        with pytest.raises(ConfigError, match=message):
            open_source(path)


def test_a_folder_may_be_called_as_it_likes(root: Path, tmp_path: Path) -> None:
    for name in ("data.zip", "data.7z", "cat.jpg", "a.csv"):
        (tmp_path / name).symlink_to(root)
        assert isinstance(open_source(tmp_path / name), FolderSource)


def test_a_compressed_shard(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"\x1f\x8b" + bytes(600))
    with pytest.raises(DataError, match=r"compressed \(gzip\), .*unpack it first"):
        open_source(tmp_path / "a.tar.gz")


def test_a_list_of_folders(root: Path, tmp_path: Path) -> None:
    for folders in ([root, root], [root]):
        with pytest.raises(
            ConfigError, match=rf"'{root}' is a folder in a list, and several are not read as one.*links"
        ):
            open_source(folders)
    assert isinstance(open_source([write_samples(tmp_path / "a.tar")]), ShardSource)


def imitation(name: str, *bases: type) -> type:
    """A class that goes by the full name of a library's that is not installed here."""
    module, _, short = name.rpartition(".")
    return type(short, bases, {"__module__": module, "__len__": lambda self: 3, "__getitem__": lambda self, i: {}})


def samples(root: Path) -> list[tuple[Path, int]]:
    return [(path, 0) for path in root.glob("*/*.jpg")]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (ImageFolder, r"an ImageFolder, whose images come decoded: pass its folder, Loader\('/.*its transform becomes"),
        (
            lambda root: torch.utils.data.Subset(ImageFolder(root), [1, 2]),
            r"a Subset, of an ImageFolder, .*Subset\(gpupipe\.open_source\('/.*'\), data\.indices\)",
        ),
        (
            lambda root: torch.utils.data.random_split(ImageFolder(root), [3, 5])[0],
            r"Subset\(gpupipe\.open_source",
        ),
        (lambda root: torch.utils.data.DataLoader(ImageFolder(root)), "a DataLoader, whose place a Loader takes"),
        (samples, r"a list of 8 samples, the first .*, a path where the bytes belong: .*read_bytes\(\), label\)"),
        (lambda root: np.zeros((4, 8, 8, 3), np.uint8), "a ndarray, whose rows have no label"),
        (lambda root: gpupipe.split(range(10), (0.5, 0.5))[0], r"lists samples, .*order=gpupipe\.Subset\(indices"),
        (lambda root: torch.zeros(4, 3, 8, 8), "a Tensor, whose rows have no label"),
        (lambda root: {"train": 1, "test": 2}, "a dict, of 'train', 'test': pass one of its parts"),
        (lambda root: imitation("datasets.dataset_dict.DatasetDict", dict)(validation=1), "of 'validation': pass one"),
    ],
)
def test_objects_of_other_kinds(make: Any, message: str, root: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        gpupipe.Loader(make(root), gpupipe.imagenet_eval(8))


class Bytes(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        return Path(path).read_bytes(), label


def read_bytes(path: str) -> bytes:
    return Path(path).read_bytes()


def test_those_made_to_give_bytes_are_taken(root: Path) -> None:
    expected = open_source(root)
    folder = ImageFolder(root)
    made = [
        Bytes(root),
        ImageFolder(root, loader=read_bytes),  # type: ignore[arg-type]
        DatasetFolder(str(root), read_bytes, (".jpg",)),
        torch.utils.data.Subset(Bytes(root), range(8)),
        {index: (read_bytes(path), label) for index, (path, label) in enumerate(folder.samples)},
    ]
    for data in made:
        source = open_source(data)
        assert isinstance(source, DatasetSource)
        got = source.fetch(np.arange(8))
        assert [part.tobytes() for part in got["image"].data] == [expected[index][0].tobytes() for index in range(8)]
        assert got["label"].tolist() == expected.targets.tolist()
