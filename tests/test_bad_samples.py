"""Samples that can't be read or decoded: the same ones, named, and the same substitutes, on every engine and rank."""

from __future__ import annotations

import gc
import os
import shutil
import weakref
from pathlib import Path

import pytest
import torch
from images import encode, picture

import gpupipe
from gpupipe.decode.dali import engine as dali

ENGINES = [
    pytest.param({"engine": "torch", "num_workers": 0}, id="torch-0"),
    pytest.param({"engine": "torch", "num_workers": 2}, id="torch-2"),
    pytest.param({"engine": "dali", "num_workers": 2}, id="dali"),
]
GOOD = encode(picture(200, 260, 50), quality=90)


def broken_huffman(data: bytes) -> bytes:
    at = data.index(b"\xff\xc4") + 10
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def copied(folder: Path, tmp_path: Path) -> Path:
    """The images without their index, which knows their sizes."""
    return Path(shutil.copytree(folder, tmp_path / "data", ignore=shutil.ignore_patterns(".gpupipe*")))


def broken_png() -> bytes:
    """Damage that shows only while it is decoded."""
    data = encode(picture(90, 120, 3), "PNG")
    at = data.index(b"IDAT") + 30
    return data[:at] + b"abc" + data[at + 3 :]


DAMAGE = {
    "empty": b"",
    "html": b"<html><body>not found</body></html>" * 20,
    "cut in half": GOOD[: len(GOOD) // 2],
    "cut tail": GOOD[:-40],
    "broken Huffman table": broken_huffman(GOOD),
    "broken PNG": broken_png(),
    "header only": GOOD[:700],
}


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param


@pytest.fixture
def refused(folder: Path, tmp_path: Path) -> Path:
    """The shared folder's images, of which number 7 is one that DALI refuses only while it decodes it."""
    root = copied(folder, tmp_path)
    (root / "class_1" / "img_2.jpg").write_bytes(broken_png())
    return root


@pytest.fixture
def damaged(folder: Path, tmp_path: Path) -> Path:
    """The shared folder's images, of which two are damaged: 1 (empty) and 13 (a broken Huffman table)."""
    root = copied(folder, tmp_path)
    files = sorted(root.glob("*/*.jpg"))
    files[1].write_bytes(b"")
    files[13].write_bytes(broken_huffman(files[13].read_bytes()))
    return root


def open_loader(data, batch_size=5, **options):
    options = {"device": "cpu", "shuffle": True, "seed": 2} | options
    return gpupipe.Loader(data, gpupipe.imagenet_train(48, dtype="uint8"), batch_size, **options)


def collect(loader):
    return [(images.clone(), labels.clone()) for images, labels in loader]


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_raise_names_the_sample(folder, tmp_path, engine, damage):
    root = copied(folder, tmp_path)
    victim = sorted(root.glob("*/*.jpg"))[8]
    victim.write_bytes(damage)
    with open_loader(root, **engine) as loader:
        with pytest.raises(gpupipe.SampleError) as raised:
            collect(loader)
        assert raised.value.index == 8
        for part in (str(victim.relative_to(root)), "on_error='skip'"):
            assert part in str(raised.value)
        assert [bad.index for bad in loader.bad_samples] == [8]


@pytest.mark.parametrize("left", [0, 0.5])
def test_shards_that_are_cut_between_two_batches(shards, tmp_path, engine, left):
    """A process that had mapped them would end with a bus error."""
    copies = [Path(shutil.copy2(shard, tmp_path)) for shard in sorted(Path(shards).parent.glob("*.tar"))]
    with open_loader(copies, batch_size=1, shuffle=False, **engine) as loader:
        iterator = iter(loader)
        next(iterator)
        for shard in copies:
            os.truncate(shard, int(shard.stat().st_size * left))
        with pytest.raises(gpupipe.SampleError) as raised:
            collect(iterator)
        for part in ("key 'class_", "part-", "at offset", "it was cut since it was indexed"):
            assert part in str(raised.value)


def test_samples_of_a_cut_shard_are_replaced(shards, tmp_path, engine):
    copies = [Path(shutil.copy2(shard, tmp_path)) for shard in sorted(Path(shards).parent.glob("*.tar"))]
    with open_loader(copies, on_error="skip", **engine) as loader:
        assert sum(len(labels) for _, labels in collect(loader)) == 25
        os.truncate(copies[1], 1000)
        for _ in range(2):  # of the first some batches have been made by now
            assert sum(len(labels) for _, labels in collect(loader)) == 25
        assert sorted(bad.index for bad in loader.bad_samples) == list(range(9, 18))


def test_skip_goes_on_and_lists_each_bad_sample_once(damaged, engine, caplog):
    with open_loader(damaged, on_error="skip", **engine) as loader:
        for _ in range(3):
            assert sum(len(labels) for _, labels in collect(loader)) == 25
        assert sorted(bad.index for bad in loader.bad_samples) == [1, 13]
        assert all(bad.reason for bad in loader.bad_samples)
    assert len([record for record in caplog.records if "bad sample" in record.message]) == 2


def test_the_substitute_is_the_next_good_sample_of_the_epochs_order(damaged, engine):
    with open_loader(damaged, on_error="skip", **engine) as loader:
        order = [index for step in range(len(loader)) for index in loader.batch_indices(step).tolist()]
        labels = torch.cat([labels for _, labels in collect(loader)]).tolist()
        targets = loader.dataset.targets
    expected = []
    for position in range(25):
        at = position
        while order[at] in (1, 13):
            at = (at + 1) % 25
        expected.append(int(targets[order[at]]))
    assert labels == expected


def test_engines_and_ranks_agree_on_substitutes(damaged):
    with open_loader(damaged, on_error="skip", engine="torch", num_workers=0, batch_size=6) as loader:
        reference = collect(loader)
    for world in (1, 2, 3):
        for engine in ("torch", "dali"):
            parts = []
            for rank in range(world):
                options = {"engine": engine, "num_workers": 1, "rank": rank, "world_size": world}
                with open_loader(damaged, on_error="skip", batch_size=6 // world, **options) as loader:
                    parts.append(collect(loader))
            for step in range(len(reference) - 1):
                images = torch.cat([part[step][0] for part in parts])
                labels = torch.cat([part[step][1] for part in parts])
                assert torch.equal(labels, reference[step][1])
                assert (images.int() - reference[step][0].int()).abs().float().mean() < 0.5


def test_resume_gives_the_same_substitutes(damaged, engine):
    with open_loader(damaged, on_error="skip", **engine) as loader:
        whole = collect(loader)
        loader.set_epoch(0)
        iterator = iter(loader)
        next(iterator), next(iterator)
        state = loader.state_dict()
    with open_loader(damaged, on_error="skip", **engine) as resumed:
        resumed.load_state_dict(state)
        for (images, labels), (other, others) in zip(collect(resumed), whole[2:], strict=True):
            assert torch.equal(labels, others)
            assert torch.equal(images, other)


def test_a_file_that_vanishes_is_named(folder, tmp_path, engine):
    root = copied(folder, tmp_path)
    with open_loader(root, **engine) as loader:
        (root / "class_2" / "img_0.jpg").unlink()
        with pytest.raises(gpupipe.SampleError, match=r"class_2/img_0\.jpg"):
            collect(loader)


@pytest.mark.parametrize("size", [(400, 500), (40, 50)])
def test_a_file_overwritten_after_indexing_is_named(folder, tmp_path, engine, size):
    """In place, so that its folder counts as unchanged; a larger image would hold the window drawn for the old one."""
    root = copied(folder, tmp_path)
    with open_loader(root, **engine):
        pass
    victim = root / "class_3" / "img_1.jpg"
    victim.write_bytes(encode(picture(*size, 3), quality=90))
    with (
        open_loader(root, **engine) as loader,
        pytest.raises(gpupipe.SampleError, match="changed since it was indexed"),
    ):
        collect(loader)


def test_an_error_does_not_hold_the_frames_it_passed(damaged):
    class Witness:
        pass

    def run(loader) -> weakref.ref:
        witness = Witness()
        with pytest.raises(gpupipe.SampleError):
            collect(loader)
        return weakref.ref(witness)

    with open_loader(damaged, engine="torch", num_workers=0) as loader:
        gone = run(loader)
        gc.collect()
        assert gone() is None
        assert loader.bad_samples


def test_what_dali_lacks_a_decoder_for_is_no_bad_sample(folder, tmp_path, caplog):
    """A GIF in a file named .jpg is the CPU's from the start, so that no pipeline ends over it."""
    root = copied(folder, tmp_path)
    gif = encode(picture(90, 120, 3), kind="GIF", mode="P")
    (root / "class_1" / "img_2.jpg").write_bytes(gif)
    caplog.set_level("INFO", logger="gpupipe")
    batches = {}
    for engine in ("torch", "dali"):
        with open_loader(root, engine=engine, num_workers=1) as loader:
            batches[engine] = [*collect(loader), *collect(loader)]
            assert not loader.bad_samples
    for (images, labels), (other, others) in zip(batches["torch"], batches["dali"], strict=True):
        assert torch.equal(labels, others)
        assert (images.int() - other.int()).abs().float().mean() < 0.5
    assert not [record for record in caplog.records if "DALI refused" in record.message]


def test_a_sample_that_dali_has_refused_is_not_given_to_it_again(refused, caplog):
    caplog.set_level("INFO", logger="gpupipe")
    with open_loader(refused, engine="dali", num_workers=1, on_error="skip") as loader:
        for _ in range(2):
            assert sum(len(labels) for _, labels in collect(loader)) == 25
    records = [record.message for record in caplog.records if "DALI refused" in record.message]
    assert records == ["DALI refused sample 7; its pipeline is rebuilt without it"]


def test_the_pipeline_that_a_refusal_ended_is_gone_when_the_next_is_built(refused, monkeypatch):
    """Each takes much of a GPU's memory."""
    built, alive = [], []
    original = dali.build_pipeline

    def build(*args, **options):
        alive.append(sum(pipeline() is not None for pipeline in built))
        pipeline = original(*args, **options)
        built.append(weakref.ref(pipeline))
        return pipeline

    monkeypatch.setattr(dali, "build_pipeline", build)
    gc.disable()
    try:
        with open_loader(refused, engine="dali", num_workers=1, on_error="skip") as loader:
            collect(loader)
    finally:
        gc.enable()
    assert len(alive) == 2
    assert not any(alive)


def test_a_batch_that_dali_refuses_as_a_whole(tmp_path):
    (tmp_path / "a").mkdir()
    for number in range(4):
        gif = encode(picture(60, 80, number), kind="GIF", mode="P")
        (tmp_path / "a" / f"{number}.jpg").write_bytes(gif)
    for data in (tmp_path, [(file.read_bytes(), 0) for file in sorted(tmp_path.glob("a/*.jpg"))]):
        with (
            open_loader(data, engine="dali", num_workers=1, batch_size=2) as loader,
            open_loader(data, engine="torch", num_workers=0, batch_size=2) as other,
        ):
            for (images, _), (truth, _) in zip(loader, other, strict=True):
                assert torch.equal(images, truth)
            assert not loader.bad_samples


def test_only_bad_samples_end_the_run(tmp_path, engine):
    (tmp_path / "a").mkdir()
    for number in range(3):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(b"no image")
    with (
        open_loader(tmp_path, on_error="skip", batch_size=2, **engine) as loader,
        pytest.raises(gpupipe.DataError, match="all bad"),
    ):
        collect(loader)


class Faulty:
    """A user's dataset whose code fails at one sample."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        if index == 7:
            raise KeyError("no such blob")
        return GOOD, index


def test_an_exception_in_user_code_is_named(engine):
    with open_loader(Faulty(), **engine) as loader:
        with pytest.raises(gpupipe.SampleError, match="no such blob") as raised:
            collect(loader)
        assert raised.value.index == 7


@pytest.mark.parametrize("value", [(GOOD, "cat"), ("a path", 7)])
def test_a_value_of_another_kind_is_a_bad_sample(engine, value):
    data = [(GOOD, number) if number != 7 else value for number in range(12)]
    with open_loader(data, **engine) as loader:
        with pytest.raises(gpupipe.SampleError, match=r"list\[7\]\): it is tuple .*; its field") as raised:
            collect(loader)
        assert raised.value.index == 7
    with open_loader(data, on_error="skip", shuffle=False, **engine) as loader:
        assert torch.cat([labels for _, labels in collect(loader)]).tolist() == [*range(7), 8, *range(8, 12)]
        assert [error.index for error in loader.bad_samples] == [7]


def test_a_label_of_another_shape_is_named(engine):
    data = [(GOOD, 0 if number != 7 else torch.tensor([0, 1, 0])) for number in range(12)]
    with (
        open_loader(data, **engine) as loader,
        pytest.raises(gpupipe.DataError, match=r"the labels have different shapes: .*list\[7\] \(3,\)"),
    ):
        collect(loader)


def test_user_code_that_fails_can_be_skipped(engine):
    with open_loader(Faulty(), on_error="skip", **engine) as loader:
        labels = torch.cat([labels for _, labels in collect(loader)]).tolist()
    assert 7 not in labels
    assert len(labels) == 12


def test_an_error_that_no_sample_caused_is_raised_as_it_is(folder, monkeypatch):
    """DALI failing as a whole must not put every sample aside."""
    with open_loader(folder, engine="dali") as loader:
        iterator = iter(loader)
        next(iterator)
        engine = loader._engine
        monkeypatch.setattr(
            engine._pipeline, "outputs", lambda: (_ for _ in ()).throw(RuntimeError("out of memory")), raising=False
        )
        with pytest.raises(RuntimeError, match="out of memory"):
            next(iterator)
