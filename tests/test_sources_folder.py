"""Image folders, against torchvision's ImageFolder and Pillow."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from images import encode, picture, write_folder
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

import gpupipe
from gpupipe.errors import REPAIR, DataError, SampleError
from gpupipe.sources import FolderSource, open_source
from gpupipe.sources.folder import EXTENSIONS, INDEX_NAME
from gpupipe.sources.listed import open_listed
from gpupipe.sources.storage import open_index, write_index
from gpupipe.tools.verifying import keep_verdict

NAMES = [
    "b/2.jpg",
    "b/10.jpg",
    "b/1.JPEG",
    "a/x.png",
    "a-b/y.JPG",
    "a/deep/er/z.jpg",
    "a/deep-er/z.jpg",
    "a/deep/er.jpg",
    "a/.hidden.jpg",
    "ä ö/über uns.webp",
    "B/.dir/q.bmp",
    "b/dots.in.name.jpeg",
    "b/w.ppm",
    "b/v.pgm",
    "b/t.tif",
    "b/s.TIFF",
]
PILLOW_KINDS = {"jpg": "JPEG", "jpeg": "JPEG", "tif": "TIFF", "pgm": "PPM"}


@pytest.fixture
def varied(tmp_path: Path) -> Path:
    root = tmp_path / "varied"
    for number, name in enumerate(NAMES):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        suffix = path.suffix[1:].lower()
        mode = "L" if suffix == "pgm" else "RGB"
        kind = PILLOW_KINDS.get(suffix, suffix.upper())
        path.write_bytes(encode(picture(20 + number, 50 - number, number), kind, mode))
    (root / "b/notes.txt").write_text("no image")
    (root / "loose.jpg").write_bytes(b"not in a class")
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(root / "a", elsewhere)
    (root / "linked").symlink_to(elsewhere, target_is_directory=True)
    (root / "b/linked").symlink_to(elsewhere / "deep", target_is_directory=True)
    (root / "b/link.jpg").symlink_to(root / "a/x.png")
    return root


def source_of(root: Path) -> FolderSource:
    source = open_source(root)
    assert isinstance(source, FolderSource)
    return source


PART = st.text("aAbB.-_ é1", min_size=1, max_size=3).filter(lambda name: name.strip("."))


@given(
    st.lists(
        st.tuples(PART, st.lists(PART, max_size=2), PART, st.sampled_from([".jpg", ".JPG", ".png", ".txt"])),
        max_size=12,
    )
)
@settings(max_examples=40, deadline=None)
def test_any_tree_has_torchvisions_order(names: list[tuple[str, list[str], str, str]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        for class_name, folders, stem, suffix in names:
            path = Path(root, class_name, *folders, stem + suffix)
            with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"x")
        try:
            expected = ImageFolder(root).samples
        except FileNotFoundError:
            with pytest.raises(DataError):
                open_source(root)
            return
        source = source_of(Path(root))
        assert list(zip(paths(source), source.targets.tolist(), strict=True)) == expected


def paths(source: FolderSource) -> list[str]:
    return [f"{source.root}/{source.key(index)}" for index in range(len(source))]


def test_extensions_are_torchvisions() -> None:
    assert EXTENSIONS == IMG_EXTENSIONS


def test_same_samples_as_torchvision(varied: Path) -> None:
    source, expected = source_of(varied), ImageFolder(varied)
    assert list(zip(paths(source), source.targets.tolist(), strict=True)) == expected.samples
    assert source.classes == expected.classes
    assert source.class_to_idx == expected.class_to_idx


def test_the_index_does_not_disturb_torchvision(varied: Path) -> None:
    before = ImageFolder(varied).samples
    source_of(varied)
    assert (varied / INDEX_NAME).is_file()
    assert ImageFolder(varied).samples == before


def test_shapes_keys_and_bytes(varied: Path) -> None:
    source = source_of(varied)
    shuffled = np.random.default_rng(1).permutation(len(source))
    shapes, columns = source.shapes(shuffled), source.fetch(shuffled)
    for place, index in enumerate(shuffled.tolist()):
        path = Path(source.location(index))
        assert path == varied / source.key(index)
        assert source[index][0].tobytes() == path.read_bytes()
        with Image.open(path) as image:
            assert (shapes[place, 1], shapes[place, 0]) == image.size
        assert columns["label"][place] == source.targets[index]
    assert (columns["label"].dtype, shapes.dtype, shapes.shape) == (np.int64, np.int32, (len(source), 3))


def test_a_string_a_path_and_a_relative_path_give_the_same(varied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(varied.parent)
    sources = [open_source(form) for form in (varied, str(varied), "varied", "./varied/")]
    assert len({source.fingerprint for source in sources}) == 1
    assert {os.path.isabs(source.location(0)) for source in sources} == {True}


def touch(folder: Path) -> None:
    """Give a folder a time of change that differs, whatever the file system's clock resolves."""
    stat = folder.stat()
    os.utime(folder, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000_000))


def test_a_second_opening_uses_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_folder(tmp_path / "data")
    first = source_of(root)

    def never(*args: object) -> None:
        raise AssertionError("scanned again")

    monkeypatch.setattr("gpupipe.sources.folder._scan", never)
    second = source_of(root)
    assert second.fingerprint == first.fingerprint
    with pytest.raises(AssertionError, match="scanned again"):
        open_source(root, rebuild=True)


@pytest.mark.parametrize("folder", ["class_1", "class_1/deep"])
def test_an_added_file_makes_the_index_stale(tmp_path: Path, folder: str, caplog: pytest.LogCaptureFixture) -> None:
    root = write_folder(tmp_path / "data")
    (root / "class_1/deep").mkdir()
    before = source_of(root)
    (root / folder / "new.jpg").write_bytes(encode(picture(33, 44)))
    touch(root / folder)
    with caplog.at_level(logging.WARNING, "gpupipe"):
        after = source_of(root)
    assert len(caplog.records) == 1
    assert f"folder {folder} was changed" in caplog.text
    assert len(after) == len(before) + 1
    assert after.fingerprint != before.fingerprint
    assert f"{folder}/new.jpg" in {after.key(index) for index in range(len(after))}


@pytest.mark.parametrize("labels", [True, False])
def test_a_file_that_came_with_the_folders_old_time(tmp_path: Path, labels: bool) -> None:
    """As when the second of several tars of one tree is unpacked, each of which has the folders, too."""
    root = write_folder(tmp_path / "data")
    fields = None if labels else {"image": gpupipe.Image()}
    before, time = open_source(root, fields=fields), (root / "class_1").stat()
    (root / "class_1/new.jpg").write_bytes(encode(picture(33, 44)))
    os.utime(root / "class_1", ns=(time.st_atime_ns, time.st_mtime_ns))
    assert len(open_source(root, fields=fields)) == len(before) + 1


def test_a_copy_of_a_folder_has_a_fresh_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = write_folder(tmp_path / "data")
    before = source_of(root)
    copied = shutil.copytree(root, tmp_path / "copied")
    with monkeypatch.context() as patched:
        patched.delattr("gpupipe.sources.folder._scan")
        assert source_of(copied).fingerprint == before.fingerprint
    (copied / "class_1/new.jpg").write_bytes(encode(picture(33, 44)))
    touch(copied / "class_1")
    assert len(source_of(copied)) == len(before) + 1
    assert "folder class_1 was changed" in caplog.text


def test_an_index_that_notes_less_is_made_again_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As earlier releases have left them."""
    root = write_folder(tmp_path / "data")
    before = source_of(root)
    index = open_index(root / INDEX_NAME)
    directories = {name: times[0] for name, times in index.info["directories"].items()}
    write_index(root / INDEX_NAME, index.fingerprint, index.info | {"directories": directories}, index.arrays)
    assert source_of(root).fingerprint == source_of(root).fingerprint == before.fingerprint
    assert [record.message.count("is built again") for record in caplog.records] == [1]


def test_a_verdict_is_kept_in_the_copy_of_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_folder(tmp_path / "data")
    source_of(root)
    copied = shutil.copytree(root, tmp_path / "copied")
    monkeypatch.delattr("gpupipe.sources.folder._scan")
    for place in (root, copied):
        bad = SampleError(2, "there", "can't be decoded", REPAIR)
        keep_verdict(source_of(place), [bad])
        assert source_of(place).verdict == {2: "can't be decoded"}


def test_added_and_removed_classes_make_the_index_stale(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data")
    assert source_of(root).classes == ["class_0", "class_1", "class_2"]
    shutil.copytree(root / "class_2", root / "class_15")
    assert source_of(root).classes == ["class_0", "class_1", "class_15", "class_2"]
    shutil.rmtree(root / "class_0")
    assert source_of(root).classes == ["class_1", "class_15", "class_2"]


def test_a_moved_folder_keeps_its_index_and_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_folder(tmp_path / "data")
    before = source_of(root)
    shutil.move(root, tmp_path / "moved")
    monkeypatch.delattr("gpupipe.sources.folder._scan")
    after = source_of(tmp_path / "moved")
    assert after.fingerprint == before.fingerprint
    assert after[3][0].tobytes() == (tmp_path / "moved" / after.key(3)).read_bytes()


def test_the_fingerprint_ignores_times_but_not_content(tmp_path: Path) -> None:
    one, two = source_of(write_folder(tmp_path / "one")), source_of(write_folder(tmp_path / "two"))
    assert one.fingerprint == two.fingerprint
    (tmp_path / "two/class_0/img_0.jpg").write_bytes(encode(picture(99, 98)))
    assert open_source(tmp_path / "two", rebuild=True).fingerprint != one.fingerprint
    (tmp_path / "one/class_0").rename(tmp_path / "one/class_00")
    assert source_of(tmp_path / "one").fingerprint != one.fingerprint


def test_a_file_of_another_size_says_what_to_do(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data")
    source = source_of(root)
    (root / "class_0/img_1.jpg").write_bytes(encode(picture(99, 98)))
    with pytest.raises(SampleError, match=r"class_0/img_1\.jpg.*index says.*gpupipe index .* --rebuild") as caught:
        source[1][0]
    assert caught.value.index == 1
    (root / "class_0/img_1.jpg").unlink()
    with pytest.raises(SampleError, match="No such file"):
        source[1][0]


def test_damaged_files_have_size_zero(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data")
    (root / "class_0/img_0.jpg").write_bytes(b"<html>")
    (root / "class_1/img_0.jpg").write_bytes(b"")
    (root / "class_2/img_0.jpg").write_bytes(encode(picture(50, 60))[:700])
    (root / "class_2/gone.jpg").symlink_to(root / "nowhere")
    source = source_of(root)
    damaged = {source.key(index) for index in np.flatnonzero(source.shapes(np.arange(len(source)))[:, 0] == 0)}
    assert damaged == {"class_0/img_0.jpg", "class_1/img_0.jpg", "class_2/img_0.jpg", "class_2/gone.jpg"}
    assert source[0][0].tobytes() == b"<html>"


@pytest.mark.parametrize("name", ["photo", "photo and mask"])
def test_files_that_come_after_their_links(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """As those of git-annex and DVC do, which change none of the folders."""
    root, objects = write_folder(tmp_path / "data"), tmp_path / "objects"
    objects.mkdir()
    fields: dict[str, gpupipe.Field] = {"image": gpupipe.Image()}
    if name == "photo and mask":
        fields |= {"mask": gpupipe.Mask(folder="masks", suffix=".png", missing="default")}
        for path in root.rglob("*.jpg"):
            mask = root / "masks" / path.relative_to(root).with_suffix(".png")
            mask.parent.mkdir(exist_ok=True, parents=True)
            mask.write_bytes(encode(picture(9, 9), "PNG"))
        mask.unlink()
        mask.symlink_to(objects / "mask")
    (root / "class_2/new.jpg").symlink_to(objects / "photo")
    (root / "class_2/never.jpg").symlink_to(tmp_path / "nowhere")
    source = open_source(root, fields=fields)
    for _ in range(2):
        assert open_source(root, fields=fields).index_path == source.index_path
    assert source.image_sizes()[-2:].tolist() == [[0, 0]] * 2
    assert not [one for one in caplog.records if "is stale" in one.message]
    (objects / "photo").write_bytes(encode(picture(33, 44)))
    there = open_source(root, fields=fields)
    assert f"{root}/class_2/new.jpg could not be read, and can be now" in caplog.text
    assert there.image_sizes()[-2:].tolist() == [[0, 0], [33, 44]]
    if name == "photo and mask":
        keys = [there.key(index) for index in range(len(there))]
        row = keys.index(mask.relative_to(root / "masks").with_suffix(".jpg").as_posix())
        assert np.size(there[row]["mask"]) == 1
        (objects / "mask").write_bytes(encode(picture(9, 9), "PNG"))
        assert np.size(open_source(root, fields=fields)[row]["mask"]) > 1
    caplog.clear()
    assert open_source(root, fields=fields).image_sizes().tolist() == there.image_sizes().tolist()
    assert not caplog.records


def test_files_that_come_after_a_dataset_has_listed_them(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.jpg" for number in range(2)]
    for path in paths:
        path.symlink_to(tmp_path / f"object {path.name}")
    (tmp_path / "object 0.jpg").write_bytes(encode(picture(33, 44)))
    root = tmp_path / "elsewhere"
    root.mkdir()
    links = [Path(shutil.move(path, root)) for path in paths]
    assert open_listed(links, [0, 1]).image_sizes().tolist() == [[33, 44], [0, 0]]
    (tmp_path / "object 1.jpg").write_bytes(encode(picture(55, 66)))
    assert open_listed(links, [0, 1]).image_sizes().tolist() == [[33, 44], [55, 66]]


def test_a_link_to_a_folder_above_is_refused(tmp_path: Path) -> None:
    """Two of them, followed in turn, would make 2 ** 40 folders before the system says that these are too many."""
    root = write_folder(tmp_path / "data")
    (root / "class_1/deep").mkdir()
    for name in ("one", "two"):
        (root / "class_1/deep" / name).symlink_to(root / "class_1")
    with pytest.raises(DataError, match=rf"folder {root}/class_1/deep/(one|two) is a link to a folder that it lies in"):
        open_source(root)
    for name in ("one", "two"):
        (root / "class_1/deep" / name).unlink()
        (root / "class_1/deep" / name).symlink_to(root / "class_2")  # twice the same, but with an end
    assert len(source_of(root)) == 12 + 8


def test_images_of_gigabytes_are_damaged_and_not_read(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data")
    (root / "class_0/img_1.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    os.truncate(root / "class_0/img_1.jpg", 40 << 30)
    source = source_of(root)
    assert np.flatnonzero(source.shapes(np.arange(12))[:, 0] == 0).tolist() == [1]
    with pytest.raises(SampleError, match=r"class_0/img_1\.jpg\): has 42,949,672,960 bytes, more than"):
        source[1][0]


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no folder at .*nothing.*check the path"):
        open_source(tmp_path / "nothing")


def test_an_empty_folder_and_one_without_classes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no class folders"):
        open_source(tmp_path)
    (tmp_path / "1.jpg").write_bytes(encode(picture(20, 20)))
    with pytest.raises(DataError, match="one sub-folder per class"):
        open_source(tmp_path)


def test_a_class_without_images_is_named_as_in_torchvision(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data")
    (root / "empty one").mkdir()
    (root / "text only").mkdir()
    (root / "text only/readme.txt").write_text("no image")
    with pytest.raises(FileNotFoundError, match="empty one, text only"):
        ImageFolder(root)
    with pytest.raises(DataError, match="empty one, text only"):
        open_source(root)
    assert not (root / INDEX_NAME).exists()


def test_pickled_sources_carry_no_data(tmp_path: Path) -> None:
    source = source_of(write_folder(tmp_path / "data"))
    blob = pickle.dumps(source)
    copy = pickle.loads(blob)
    assert len(blob) < 1000
    assert copy[5][0].tobytes() == source[5][0].tobytes()
    assert copy.fingerprint == source.fingerprint
    (tmp_path / "data/class_0/img_1.jpg").write_bytes(encode(picture(99, 98)))
    open_source(tmp_path / "data", rebuild=True)
    with pytest.raises(DataError, match=r"describes other content.*indexed again"):
        pickle.loads(blob)
    (tmp_path / "data" / INDEX_NAME).unlink()
    with pytest.raises(DataError, match="can't be opened any more"):
        pickle.loads(blob)


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", classes=1)
    odd = os.fsencode(root / "class_0") + b"/\xff\xfe.jpg"
    with open(odd, "wb") as file:
        file.write(encode(picture(21, 22)))
    source = source_of(root)
    assert [(path, 0) for path in paths(source)] == ImageFolder(root).samples
    assert source.location(4).encode("ascii").endswith(b"\\udcff\\udcfe.jpg")
    assert source[4][0].tobytes() == encode(picture(21, 22))
