"""Samples that can't be read or decoded: the same ones, named, and the same substitutes, on every engine and rank."""

from __future__ import annotations

import gc
import io
import os
import shutil
import subprocess
import sys
import weakref
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from header_flips import as_dataset, scan_flips
from hostile import few_scans
from images import encode, picture
from PIL import Image
from torchvision.transforms import v2

import gpupipe
from gpupipe.batch.batch import ENDLESS
from gpupipe.decode.dali import engine as dali
from gpupipe.loader.repair import may_fail_by_draws
from gpupipe.loader.tally import Tally
from gpupipe.order import RankBatches
from gpupipe.plan import cropping

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


def test_of_damage_in_what_is_coded_pillow_decides(engine):
    """DALI and nvImageCodec take files that Pillow refuses, as with a foreign marker among what is coded."""
    files = [*scan_flips(1, 150), few_scans(picture(60, 90), 3)]
    bad = set()
    for number, data in enumerate(files):
        try:
            Image.open(io.BytesIO(data)).convert("RGB")
        except Exception:  # whatever its parsers raise
            bad.add(number)
    assert 20 < len(bad) < 100
    recipe = gpupipe.imagenet_train(32, dtype="uint8")
    with gpupipe.Loader(as_dataset(files), recipe, 50, on_error="skip", device="cpu", **engine) as loader:
        assert sum(len(labels) for _, labels in loader) == len(files)
        assert {sample.index for sample in loader.bad_samples} == bad


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
    assert records == ["gpupipe: DALI refused sample 7; its pipeline is rebuilt without it"]


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


def test_an_error_that_no_sample_caused_is_raised(folder, monkeypatch):
    """DALI failing as a whole must not put every sample aside."""
    with open_loader(folder, engine="dali") as loader:
        iterator = iter(loader)
        next(iterator)
        engine = loader._engine
        monkeypatch.setattr(
            engine._pipeline, "outputs", lambda: (_ for _ in ()).throw(RuntimeError("out of memory")), raising=False
        )
        with pytest.raises(gpupipe.GpupipeError, match="DALI failed: out of memory; memory ran out"):
            next(iterator)


class Bad:
    """A dataset of which one in `every` samples is good; 0: none."""

    def __init__(self, every: int) -> None:
        self.every = every

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return (GOOD if self.every and index % self.every == 0 else b"no image", index)


def until_too_many(iterator) -> tuple[list[int], gpupipe.TooManyBadError | None]:
    """Labels up to the error that ends them, or to the end."""
    labels: list[int] = []
    try:
        for _, some in iterator:
            labels += some.tolist()
    except gpupipe.TooManyBadError as error:
        return labels, error
    return labels, None


def lines_of_an_epochs_end(caplog) -> list[str]:
    return [record.message for record in caplog.records if "were bad and replaced" in record.message]


@pytest.mark.parametrize(("max_bad", "allowed"), [(None, 20), (7, 7), (1.0, 40)])
def test_a_run_stops_above_a_rate_of_bad_samples(engine, caplog, max_bad, allowed):
    """26 of 40 are bad: by default that is no epoch."""
    with open_loader(Bad(3), shuffle=False, batch_size=4, on_error="skip", max_bad=max_bad, **engine) as loader:
        order = [index for step in range(len(loader)) for index in loader.batch_indices(step).tolist()]
        bad = [sum(index % 3 > 0 for index in order[:end]) for end in range(4, 41, 4)]  # by the end of each batch
        labels, error = until_too_many(iterator := iter(loader))
        steps = sum(count <= allowed for count in bad)
        assert labels == [-(-index // 3) * 3 for index in order[: 4 * steps]]  # the next good one
        assert loader.stats()["replaced"] == bad[min(steps, 9)]
        if steps == 10:
            (line,) = lines_of_an_epochs_end(caplog)
            assert line.startswith("gpupipe: 26 of 40 samples of epoch 0 were bad and replaced: sample ")
            return
        first = next(index for index in order if index % 3 > 0)
        assert f"{bad[steps]} of the first {4 * steps + 4} samples of epoch 0 were bad, and max_bad=" in str(error)
        assert f" allows {allowed} of its 40: sample {first} (" in str(error)
        assert str(error).count("no known image format begins with") == 5
        state = loader.state_dict()
        with pytest.raises(gpupipe.TooManyBadError):  # the batch after it is of the same epoch
            next(iterator)
        loader.load_state_dict(state)
        assert until_too_many(iter(loader))[0]  # counted from 0


def test_the_first_of_many_bad_samples_are_logged_and_then_no_more(engine, caplog):
    with open_loader(Bad(3), shuffle=False, batch_size=4, on_error="skip", max_bad=1.0, **engine) as loader:
        for _ in range(2):
            collect(loader)
        lines = [record.message for record in caplog.records if "bad sample" in record.message]
        listed = {bad.index for bad in loader.bad_samples}
    assert len(listed) == 26
    assert len({line for line in lines[:20] if "bad sample replaced: sample " in line}) == 20
    assert lines[20:] == ["gpupipe: bad samples after these 20 are not logged, but `bad_samples` lists all"]


def test_bad_samples_that_are_few_go_on_and_are_counted_once(folder, tmp_path, caplog):
    root = copied(folder, tmp_path)
    sorted(root.glob("*/*.jpg"))[3].write_bytes(b"")
    with open_loader(root, on_error="skip", engine="torch", num_workers=0) as loader:
        for epoch in range(2):
            iterator = iter(loader)
            for _ in range(len(loader)):  # some training loops don't ask for the end
                next(iterator)
            assert len(lines_of_an_epochs_end(caplog)) == epoch + 1
            assert next(iterator, None) is None
            assert loader.stats()["replaced"] == epoch + 1
        assert loader.stats()["bad_samples"] == 1
    said = lines_of_an_epochs_end(caplog)
    assert [line.partition(": sample 3 (")[0] for line in said] == [
        f"gpupipe: 1 of 25 samples of epoch {epoch} were bad and replaced" for epoch in range(2)
    ]


def test_what_is_passed_over_as_missing_is_not_bad():
    data = [{"image": GOOD} | ({"label": number} if number < 2 else {}) for number in range(10)]
    fields = {"image": gpupipe.Image(), "label": gpupipe.Scalar(missing="skip")}
    with open_loader(data, fields=fields, on_error="skip", max_bad=0, engine="torch", num_workers=0) as loader:
        assert {int(label) for _, labels in collect(loader) for label in labels} == {0, 1}
        assert loader.stats()["replaced"] == 0
        assert len(loader.bad_samples) == 8


@pytest.mark.parametrize(("max_bad", "reads"), [(0, 2), (7, 8), (0.1, 5)])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_data_that_are_bad_throughout_end_a_run_without_all_being_read(max_bad, reads, num_workers):
    options = dict(engine="torch", num_workers=num_workers, on_error="skip", max_bad=max_bad, batch_size=4)
    with open_loader(Bad(0), **options) as loader:
        told = f"the {reads} samples from position 0 .* are all bad, more than max_bad allows: sample 17 .*; sample 1 "
        with pytest.raises(gpupipe.TooManyBadError, match=told):
            next(iter(loader))
        assert len(loader.bad_samples) == reads


HERE = {"engine": "torch", "num_workers": 0, "shuffle": False, "on_error": "skip"}


class BadByDraws:
    """Of 8 samples number 2 is always bad, and 3 by what is drawn for it."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        if index == 2 or (index == 3 and float(torch.rand(())) < 0.5):
            raise OSError("bad")
        return GOOD, index


def epochs_of_drawn(numbers) -> list[list[int]]:
    """Labels of these epochs, of a process that has met no other."""
    with open_loader(BadByDraws(), 8, **HERE, max_bad=1.0) as loader:
        labels = []
        for number in numbers:
            loader.set_epoch(number)
            labels.append(until_too_many(iter(loader))[0])
        assert {bad.index for bad in loader.bad_samples} <= {2, 3}
        assert loader.stats()["replaced"] == sum(row != index for each in labels for index, row in enumerate(each))
    return labels


def test_what_is_bad_by_its_draws_stands_in_wherever_it_is_good(caplog):
    """Whatever else the process has met, so that a run that is resumed, and each rank, has the same."""
    whole = epochs_of_drawn(range(8))
    assert len([line for line in caplog.messages if "bad sample replaced" in line]) == 2
    assert {row[2] for row in whole} == {row[3] for row in whole} == {3, 4}
    assert [epochs_of_drawn([epoch])[0] for epoch in range(8)] == whole
    assert epochs_of_drawn(reversed(range(8))) == whole[::-1]


@pytest.mark.parametrize(
    ("operations", "fields", "expected"),
    [
        ((), {}, False),
        ((), {"caption": gpupipe.Text(tokenizer=len)}, False),
        ((), {"caption": gpupipe.Text(choose=True)}, False),
        ((), {"caption": gpupipe.Text(choose=True, tokenizer=len)}, True),
        ((), {"boxes": gpupipe.Boxes(), "mask": gpupipe.Mask()}, False),
        ((), {"boxes": gpupipe.Boxes(), "mask": gpupipe.Mask(numbers="boxes")}, True),
        ((gpupipe.LetterBox(32), gpupipe.Mosaic()), {}, True),
        ((gpupipe.LetterBox(32), gpupipe.DetectionMixUp()), {}, True),
    ],
    ids=repr,
)
def test_what_may_be_bad_by_its_draws(folder, operations, fields, expected) -> None:
    source = gpupipe.open_source(folder)
    source.fields = gpupipe.Schema({"image": gpupipe.Image()} | fields)
    recipe = gpupipe.Recipe(operations or (gpupipe.RandomResizedCrop(32),))
    assert may_fail_by_draws(source, recipe.view_recipes) == expected


def test_a_file_that_is_bad_is_not_read_in_each_epoch(damaged, monkeypatch):
    with open_loader(damaged, **HERE) as loader:
        made = []
        repair = loader._supply._repair.args[0]
        rows = repair._rows
        monkeypatch.setattr(repair, "_rows", lambda job: made.append(job.indices.tolist()) or rows(job))
        for _ in range(3):
            collect(loader)
    assert made.count([1]) == made.count([13]) == 1


def but_for(*bad: int, size: int = 10) -> list[tuple[bytes, int]]:
    return [(b"no image" if number in bad else GOOD, number) for number in range(size)]


def test_what_an_epoch_drops_at_its_end_does_not_count():
    """The sample at position 9 is one of two that are bad, though the search for another meets the bad one behind."""
    options = HERE | {"max_bad": 2, "drop_last": True}
    with open_loader(but_for(0, 8, 9, 10, size=11), **options) as loader:
        labels, error = until_too_many(iter(loader))
        assert error is not None
        assert labels == [1, 1, 2, 3, 4]
    with open_loader(but_for(0, 9, 10, size=11), **options) as loader:
        assert until_too_many(iter(loader)) == ([1, 1, 2, 3, 4, 5, 6, 7, 8, 1], None)


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_lies_before_a_resume_does_not_count(ranks):
    options = HERE | {"max_bad": 1, "world_size": ranks, "batch_size": 4 // ranks}
    for rank in range(ranks):
        with open_loader(but_for(0, 9), rank=rank, **options) as loader:
            batches = iter(loader)
            next(batches), next(batches)
            state = loader.state_dict()
        with open_loader(but_for(0, 1, 9), rank=rank, **options) as loader:
            loader.load_state_dict(state)
            assert until_too_many(iter(loader)) == ([8, 2][rank : rank + 3 - ranks], None)


def test_a_share_is_of_the_rows_of_all_ranks():
    """Each of 4 ranks has three rows, of which one may be bad: 4 in all, though a third of 9 samples are fewer."""
    for rank in range(4):
        data, options = but_for(4, 5, 6, 7, size=9), {"rank": rank, "world_size": 4, "max_bad": 1 / 3}
        with open_loader(data, 1, **HERE, **options) as loader:
            assert until_too_many(iter(loader)) == ([rank, 8, (8, 0, 1, 2)[rank]], None)


def test_what_max_bad_can_be(folder):
    for value in (-1, 1.5, -0.1, float("nan"), True, "half"):
        with pytest.raises(gpupipe.ConfigError, match="max_bad="):
            open_loader(folder, on_error="skip", max_bad=value)
    with pytest.raises(gpupipe.ConfigError, match="goes with on_error='skip'"):
        open_loader(folder, max_bad=0.5)


def test_after_a_resume_it_says_since_when(folder, tmp_path):
    """`folder` has no bad sample; one is made at the end of the epoch."""
    root = copied(folder, tmp_path)
    with open_loader(root, batch_size=5, num_workers=0, shuffle=False) as whole:
        iterator = iter(whole)
        for _ in range(3):
            next(iterator)
        state = whole.state_dict()
    sorted(root.glob("*/*.jpg"))[-1].write_bytes(b"no image")
    with open_loader(root, batch_size=5, num_workers=0, shuffle=False, on_error="skip", max_bad=0) as resumed:
        resumed.load_state_dict(state)
        with pytest.raises(gpupipe.TooManyBadError, match=r"1 of the 10 samples from step 3 on of epoch 0 were bad"):
            list(resumed)


@pytest.mark.parametrize(("max_bad", "allowed"), [(0.29, 29), (1.0, 100), (0.0, 0), (29, 29), (0, 0)])
def test_how_many_a_share_is(max_bad, allowed):
    tally, batches = Tally(max_bad), RankBatches(200, 10, rank=1, world_size=2)
    bad = gpupipe.SampleError(3, "3.jpg", "is bad")
    for _ in range(allowed):
        tally.add(1, [bad], 0, batches)
    with pytest.raises(gpupipe.TooManyBadError) if allowed < 100 else nullcontext():
        tally.add(1, [bad] if allowed < 100 else [], 0, batches)


def test_a_share_of_an_epoch_whose_end_is_not_known():
    """It is taken of 1,000 rows at least, and of all that there were when the end shows."""
    bad = gpupipe.SampleError(3, "3.jpg", "is bad")
    endless = RankBatches(ENDLESS, 10)
    tally = Tally(0.5)
    tally.add(400, [bad] * 400, 0, endless)
    with pytest.raises(gpupipe.TooManyBadError, match=r"400 of the first 700 .* allows 350 of its 700"):
        tally.add(300, [], 0, replace(endless, size=700))
    tally.begin()
    tally.add(500, [bad] * 500, 0, endless)
    tally.add(1000, [bad] * 250, 0, endless)
    with pytest.raises(gpupipe.TooManyBadError, match=r"751 of the first 1501 .* allows 750:"):
        tally.add(1, [bad], 0, endless)


NOISY = """
import pathlib, sys, gpupipe
files = [path.read_bytes() for path in sorted(pathlib.Path(sys.argv[1]).iterdir())]
class Data:
    def __len__(self):
        return len(files)
    def __getitem__(self, index):
        return files[index], index
recipe = gpupipe.imagenet_train(16)
workers = int(sys.argv[2])  # forked, as another Python would not find the class
options = dict(engine="torch", device="cpu", on_error="skip", max_bad=1.0, num_workers=workers)
options["multiprocessing_context"] = "fork" if workers else None
with gpupipe.Loader(Data(), recipe, 4, **options) as loader:
    for images, labels in loader:
        pass
    print(len(loader.bad_samples))
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_no_decoder_prints_of_damaged_files(tmp_path: Path, workers: str) -> None:
    """Pillow warns, its libtiff and nvImageCodec's libpng print, without a name; gpupipe names each."""
    good, made = picture(20, 30), {}
    for name, data in {
        "lzw": encode(good, "TIFF", compression="tiff_lzw"),
        "zip": encode(good, "TIFF", compression="tiff_adobe_deflate"),
        "fax": encode(good, "TIFF", mode="1", compression="group4"),
        "png": encode(good, "PNG"),
        "jpeg": encode(good, exif=b"Exif\0\0II*\0\x08\0\0\0\x09\0"),
        "webp": encode(good, "WEBP"),
        "gif": encode(good, "GIF"),
    }.items():
        for place in range(40, len(data), len(data) // 6):
            made[f"{name}-{place}"] = data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]
    for name, data in made.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "whole").write_bytes(encode(good))
    run = [sys.executable, "-c", NOISY, str(tmp_path), workers]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 5
    lines = done.stderr.splitlines()
    assert [line for line in lines if not line.startswith("gpupipe: ")] == []
    assert lines


SIDES = ((40, 50), (23, 60), (60, 23), (24, 24), (32, 33), (1, 1))


@pytest.mark.parametrize("padding", [0, 4])
def test_images_smaller_than_a_crop_that_does_not_pad_are_bad_where_torchvision_raises(engine, padding: int) -> None:
    samples = [(encode(picture(*sides, number), "PNG"), number) for number, sides in enumerate(SIDES)]
    refused = []
    for number, (data, _) in enumerate(samples):
        try:
            v2.RandomCrop(32, padding)(Image.open(io.BytesIO(data)))
        except ValueError:
            refused.append(number)
    crop = gpupipe.RandomCrop(32, padding=padding, pad_if_needed=False)
    recipe = gpupipe.Recipe((crop,), "uint8")
    with gpupipe.Loader(samples, recipe, 2, on_error="skip", max_bad=6, device="cpu", **engine) as loader:
        made = torch.cat([labels for _, labels in loader]).tolist()
        bad = {error.index: error.reason for error in loader.bad_samples}
    assert sorted(bad) == refused
    assert set(made) == set(range(len(SIDES))) - set(refused)
    assert "it has 60 x 23 pixels" in bad[1] if not padding else "it has 68 x 31 pixels" in bad[1]
    padded = replace(crop, pad_if_needed=True)
    with gpupipe.Loader(samples, gpupipe.Recipe((padded,), "uint8"), 6, device="cpu", **engine) as loader:
        assert len(next(iter(loader))[1]) == 6


def test_whether_a_resized_image_is_too_small_is_drawn() -> None:
    samples = [(picture(40, 40, 0), number) for number in range(40)]
    recipe = gpupipe.Recipe((gpupipe.RandomCrop(32, resize=(20, 60), pad_if_needed=False),), "uint8")
    made = []
    with gpupipe.Loader(samples, recipe, 1, engine="torch", num_workers=0) as loader:
        batches = iter(loader)
        while True:
            with suppress(gpupipe.SampleError):
                batch = next(batches, None)
                if batch is None:
                    break
                made += batch[1].tolist()
    forty = np.full(40, 40, np.int32)
    sides = cropping(recipe, 0, 0, np.arange(40), forty, forty).resized[:, 0]
    assert made == np.flatnonzero(sides >= 32).tolist()
    assert 0 < len(made) < 40


def test_what_makes_an_image_large_enough_before_the_crop_counts() -> None:
    samples = [(picture(20, 40, number), number) for number in range(4)]
    twice = gpupipe.PerImage(lambda pixels, generator: pixels.repeat(2, 0), name="twice", version="1")
    recipe = gpupipe.Recipe((twice, gpupipe.RandomCrop(32, pad_if_needed=False)), "uint8")
    with gpupipe.Loader(samples, recipe, 4, engine="torch", num_workers=0) as loader:
        assert len(next(iter(loader))[1]) == 4
    half = gpupipe.PerImage(lambda pixels, generator: pixels[:, ::2], name="half", version="1")
    recipe = gpupipe.Recipe((twice, half, gpupipe.RandomCrop(32, pad_if_needed=False)), "uint8")
    with (
        gpupipe.Loader(samples, recipe, 4, engine="torch", num_workers=0) as loader,
        pytest.raises(gpupipe.SampleError, match="it has 20 x 40 pixels where RandomCrop"),
    ):
        next(iter(loader))
