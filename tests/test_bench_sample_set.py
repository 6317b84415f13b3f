"""The made sample set: ImageNet's distribution as Pillow measures it; determinism; whole or not there."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, JpegImagePlugin

from gpupipe.errors import ConfigError
from gpupipe.tools.benchmark.sample_set import CLASSES, imagenet_like_specs, make_folder, sample_set

sys.path.append(str(Path(__file__).parent.parent / "bench"))
from training.made_classes import PATTERNS, made_classes

COUNT = 128


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_set(tmp_path_factory.mktemp("samples"), COUNT)


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.jpg"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in files(folder)}


def test_the_full_set_has_imagenets_means() -> None:
    specs = imagenet_like_specs(512, seed=5)
    assert np.mean([spec.target_bytes for spec in specs]) == pytest.approx(110_000, rel=0.02)
    assert np.mean([spec.width for spec in specs]) == pytest.approx(468, rel=0.02)
    assert np.mean([spec.height for spec in specs]) == pytest.approx(401, rel=0.02)
    kinds = Counter(spec.subsampling for spec in specs)
    assert kinds[0] / 512 == pytest.approx(0.76, abs=0.01)
    assert kinds[2] / 512 == pytest.approx(0.20, abs=0.01)
    assert kinds[None] / 512 == pytest.approx(0.02, abs=0.005)


def test_files_are_what_was_asked_for(samples: Path) -> None:
    specs = imagenet_like_specs(COUNT, seed=5)
    errors = []
    for path, spec in zip(sorted(files(samples), key=lambda path: path.stem), specs, strict=True):
        with Image.open(path) as image:
            assert image.size == (spec.width, spec.height)
            assert image.mode == ("L" if spec.subsampling is None else "RGB")
            assert spec.subsampling is None or JpegImagePlugin.get_sampling(image) == spec.subsampling
            image.load()
        errors.append(path.stat().st_size / spec.target_bytes - 1)
    assert np.quantile(np.abs(errors), 0.9) < 0.05
    assert abs(np.mean(errors)) < 0.02


def test_pictures_are_no_flat_fields_and_differ(samples: Path) -> None:
    small = [np.asarray(Image.open(path).convert("L").resize((16, 16)), dtype=float) for path in files(samples)]
    assert np.median([picture.std() for picture in small]) > 20
    correlation = np.corrcoef(np.stack(small).reshape(COUNT, -1))
    assert np.abs(correlation[np.triu_indices(COUNT, 1)]).max() < 0.999


def test_classes_are_even(samples: Path) -> None:
    assert Counter(path.parent.name for path in files(samples)) == {f"class_{i:02d}": 8 for i in range(CLASSES)}


def test_the_same_again_elsewhere_and_kept_where_it_is(tmp_path: Path) -> None:
    first, second = sample_set(tmp_path / "a", CLASSES), sample_set(tmp_path / "b", CLASSES)
    assert first.name == second.name
    assert contents(first) == contents(second)
    times = {path: path.stat().st_mtime_ns for path in files(first)}
    assert sample_set(tmp_path / "a", CLASSES) == first
    assert {path: path.stat().st_mtime_ns for path in files(first)} == times
    assert [path.name for path in (tmp_path / "a").iterdir()] == [first.name]  # nothing temporary is left


def test_a_damaged_set_is_made_again(tmp_path: Path) -> None:
    folder = sample_set(tmp_path, CLASSES)
    whole = contents(folder)
    files(folder)[3].unlink()
    assert contents(sample_set(tmp_path, CLASSES)) == whole


def test_it_lies_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "cache"))
    assert sample_set(count=CLASSES).is_relative_to(tmp_path / "cache")


def test_fewer_images_than_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="count=3"):
        sample_set(tmp_path, 3)


def test_a_folder_is_whole_or_not_there(tmp_path: Path) -> None:
    def fail(root: Path) -> None:
        (root / "half").write_text("half")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        make_folder(tmp_path / "set", fail)
    assert list(tmp_path.iterdir()) == []


def test_of_two_makers_the_first_wins(tmp_path: Path) -> None:
    target = tmp_path / "set"

    def late(root: Path) -> None:
        (root / "late").write_text("")
        target.mkdir()
        (target / "early").write_text("")

    make_folder(target, late)
    assert [path.name for path in target.iterdir()] == ["early"]
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_ten_classes(tmp_path: Path) -> None:
    train, val = made_classes(tmp_path, train=3, val=2)
    assert sorted(path.name for path in train.iterdir()) == sorted(PATTERNS) == [p.name for p in sorted(val.iterdir())]
    assert (len(files(train)), len(files(val))) == (30, 20)
    assert len({path.read_bytes() for path in (*files(train), *files(val))}) == 50  # no image is in both
    again, _ = made_classes(tmp_path / "again", train=3, val=2)
    assert contents(again) == contents(train)
