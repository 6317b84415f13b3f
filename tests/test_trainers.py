"""Loaders inside the trainers that people use: runs that are killed, resumed, and compared with undisturbed ones.

The programs are in `trainers/`. Labels are the samples' numbers, so what a run has noted is which samples it was given.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from images import encode, picture
from torch.utils.data import DataLoader

import gpupipe
from gpupipe.errors import ConfigError
from gpupipe.loader import accelerate

ROOT = Path(__file__).parent.parent
SAMPLES, STEPS = 41, 11  # of an epoch, as in trainers/common.py

pytestmark = pytest.mark.timeout(400)  # of which most is what the trainers take to be imported, several times over


def needs(library: str, *values: object) -> Any:
    """Parameters of a test that this library runs in."""
    return pytest.param(*values, marks=pytest.mark.trainers(library))


def run(program: str, *arguments: object, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TRANSFORMERS_VERBOSITY": "error"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "ignore", *launcher, str(ROOT / "tests" / "trainers" / program)]
    command += [str(argument) for argument in arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=380, check=False)


def read(path: Path) -> list[list[Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def joined(folder: Path, parts: list[str], rank: int) -> list[list[Any]]:
    """The batches of runs that went on from one another, as (number, samples); what was done again counts once."""
    batches: list[list[Any]] = []
    for part, start in enumerate([0, *(int(pair.split(":")[1]) for pair in parts)]):
        batches = batches[:start] + read(folder / f"part{part}-{rank}.jsonl")
    return batches


def assert_the_same(out: Path, parts: list[str], rank: int = 0) -> list[list[int]]:
    """Whether the killed and resumed runs were given the batches of the undisturbed one, and learned the same."""
    whole = read(out / "whole" / f"whole-{rank}.jsonl")
    assert [number for number, _ in whole] == list(range(1, 2 * STEPS + 1))
    assert joined(out / "killed", parts, rank) == whole
    for part, pair in enumerate(parts):  # what a run did after the checkpoint, until it was killed, is done again
        death = int(pair.split(":")[0])
        last = read(out / "killed" / f"part{part}-{rank}.jsonl")[-1]
        assert last == whole[death - 1]
    expected = torch.load(out / "whole" / f"whole-{rank}.pt")
    weights = torch.load(out / "killed" / f"part{len(parts)}-{rank}.pt")
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    return [samples for _, samples in whole]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "parts"),
    [
        ("torchvision_loop.py", ["9:6", "18:15"]),
        needs("timm", "timm_loop.py", ["8:7", "17:16"]),  # its saver keeps two checkpoints
        needs("lightning", "lightning_fit.py", ["9:6", "18:15", "20:11"]),
        needs("lightning", "lightning_datamodule.py", ["9:6", "18:15"]),
        needs("accelerate", "accelerate_loop.py", ["9:6", "18:15"]),
        needs("transformers", "transformers_trainer.py", ["9:6", "13:11", "18:15"]),
    ],
)
def test_killed_and_resumed(program: str, parts: list[str], tmp_path: Path) -> None:
    done = run(program, tmp_path, *parts)
    assert done.returncode == 0, done.stderr
    batches = assert_the_same(tmp_path, parts)
    first, second = list(chain.from_iterable(batches[:STEPS])), list(chain.from_iterable(batches[STEPS:]))
    assert sorted(first) == sorted(second) == list(range(SAMPLES))
    assert first != second


@pytest.mark.slow
def test_ddp_killed_and_resumed(tmp_path: Path) -> None:
    parts = ["9:6", "18:15"]
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = run("torchvision_loop.py", tmp_path, *parts, launcher=launcher)
    assert done.returncode == 0, done.stderr
    ranks = [assert_the_same(tmp_path, parts, rank) for rank in range(2)]
    for start in (0, STEPS):
        steps = list(zip(*ranks, strict=True))[start : start + STEPS]
        samples = [sample for step in steps for part in step for sample in part]
        assert sorted(samples[:SAMPLES]) == list(range(SAMPLES))
        assert samples[SAMPLES:] == samples[:1]  # padding: the last global batch has one sample for two ranks


@pytest.mark.slow
@pytest.mark.trainers("accelerate")
def test_accelerate_gathers_each_sample_once(tmp_path: Path) -> None:
    done = run("accelerate_gather.py", tmp_path, 2, 3)
    assert done.returncode == 0, done.stderr
    for world in (2, 3):
        seen = json.loads((tmp_path / f"{world}.json").read_text())
        assert seen["world"] == world
        assert sorted(seen["train"]) == list(range(SAMPLES))
        assert len(seen["dropping"]) == len(set(seen["dropping"])) == SAMPLES // (4 * world) * 4 * world
        assert seen["nested"] == [list(range(7))] * 2  # a whole evaluation inside the training loop, twice


def of_ranks(folder: Path, kind: str, epoch: int) -> list[int]:
    return sorted(
        sample
        for rank in range(2)
        for noted, in_epoch, samples in read(folder / f"{rank}.jsonl")
        if noted == kind and in_epoch == epoch
        for sample in samples
    )


@pytest.mark.slow
@pytest.mark.trainers("lightning")
class TestLightningOnTwoProcesses:
    @pytest.mark.parametrize("built", ["inside", "datamodule"])
    def test_each_sample_once(self, built: str, tmp_path: Path) -> None:
        done = run("lightning_ddp.py", tmp_path, "ddp", built)
        assert done.returncode == 0, done.stderr
        for epoch in range(2):
            assert of_ranks(tmp_path, "train", epoch) == list(range(SAMPLES))
            assert of_ranks(tmp_path, "val", epoch) == list(range(7))

    def test_a_loader_that_was_built_too_early_says_so(self, tmp_path: Path) -> None:
        done = run("lightning_ddp.py", tmp_path, "ddp_fork", "before")
        assert done.returncode != 0
        assert "built for world_size=1, but torch.distributed now has 2 ranks" in done.stderr
        assert not list(tmp_path.glob("*.jsonl"))


@pytest.mark.slow
@pytest.mark.trainers("ray")
def test_ray_train_on_two_workers_goes_on_where_its_checkpoint_stood(tmp_path: Path) -> None:
    done = run("ray_train.py", tmp_path)
    assert done.returncode == 0, done.stderr
    ranks = [read(tmp_path / f"{rank}.jsonl") for rank in range(2)]
    assert [step for step, _, _ in ranks[0]] == [*range(1, 19), *range(16, 2 * STEPS + 1)]  # killed at 18, saved at 15
    for notes in ranks:
        assert notes[15:18] == notes[18:21]  # what was done again, to the pixel
    steps = [one + other for (_, one, _), (_, other, _) in zip(*ranks, strict=True)]
    del steps[15:18]
    for epoch in range(2):
        found = list(chain.from_iterable(steps[epoch * STEPS : (epoch + 1) * STEPS]))
        expected = gpupipe.Shuffled(SAMPLES).indices(3, epoch, np.arange(SAMPLES)).tolist()
        assert found == [*expected, expected[0]]  # padding: the last global batch has one sample for two ranks
    prepared = (tmp_path / "prepared").read_text()
    assert prepared.startswith("ConfigError: a DataLoader has been built of the parts of a gpupipe.Loader")
    assert "ray.train.torch.prepare_data_loader" in prepared


class Thing:
    """Something that a weak reference can be had of."""


class TestAnnounced:
    def test_without_accelerate_nothing_is_imported_or_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "accelerate.state", None)
        monkeypatch.setitem(sys.modules, "accelerate.data_loader", None)  # an import would fail
        announcement = accelerate.Announcement(0)
        announcement.delivered(is_last=True, remainder=0)
        announcement.end()

    def test_from_the_first_batch_to_the_last(self, monkeypatch: pytest.MonkeyPatch) -> None:
        told: list[object] = []
        place = SimpleNamespace(begin=lambda: told.append("begin"), end=lambda: told.append("end"))
        monkeypatch.setattr(accelerate, "_place", lambda: place)
        samples = [(encode(picture(20, 24, seed=i)), i) for i in range(10)]
        with gpupipe.Loader(samples, gpupipe.imagenet_train(16), 4, engine="torch", num_workers=0) as loader:
            for _ in loader:
                told.append((place.remainder, place.end_of_dataloader))
            assert told == ["begin", (2, False), (2, False), (2, True), "end"]
            next(iter(loader))
            assert told[5:] == ["begin", "end"]


class TestLoader:
    @pytest.mark.parametrize("named", [False, True])
    def test_a_batch_is_let_go_before_the_next_is_made(self, named: bool) -> None:
        samples = [(encode(picture(20, 24, seed=i)), i) for i in range(40)]
        with gpupipe.Loader(samples, gpupipe.imagenet_train(16), 4, engine="torch", num_workers=0) as loader:
            gone = []
            for batch in gpupipe.TrainerLoader(loader) if named else loader:
                images = batch["pixel_values"] if named else batch[0]
                if gone:
                    assert gone[-1]() is None
                gone.append(weakref.ref(images))
                del batch, images
            assert len(gone) == 10


class TestTrainerLoader:
    @pytest.fixture
    def loader(self) -> Iterator[gpupipe.Loader]:
        samples = [(encode(picture(20, 24, seed=i)), i) for i in range(10)]
        with gpupipe.Loader(
            samples, gpupipe.imagenet_train(16), 4, shuffle=True, engine="torch", num_workers=0
        ) as made:
            yield made

    def test_batches_are_named_for_the_model(self, loader: gpupipe.Loader) -> None:
        assert [list(batch) for batch in gpupipe.TrainerLoader(loader)] == [["pixel_values", "labels"]] * 3
        loader.set_epoch(0)
        named = gpupipe.TrainerLoader(loader, images="x", labels="y")
        assert [batch["y"].tolist() for batch in named] == [loader_labels(loader, 0, step) for step in range(3)]

    def test_dicts_are_passed_on(self) -> None:
        samples = [{"pixel_values": picture(20, 24, seed=i), "labels": i, "name": f"n{i}"} for i in range(2)]
        fields = {"pixel_values": gpupipe.Image(), "labels": gpupipe.Scalar(), "name": gpupipe.Text()}
        settings: dict[str, Any] = {"fields": fields, "engine": "torch", "num_workers": 0}
        with gpupipe.Loader(samples, gpupipe.imagenet_eval(16, resize=16), 2, **settings) as loader:
            (batch,) = gpupipe.TrainerLoader(loader)
        assert batch["pixel_values"].shape == (2, 3, 16, 16)
        assert (batch["labels"].tolist(), batch["name"]) == ([0, 1], ["n0", "n1"])

    def test_batches_of_another_form_are_refused(self) -> None:
        samples = [(torch.zeros(3, 8, 8), number, f"n{number}") for number in range(2)]
        with (
            gpupipe.Loader(samples, None, 2, num_workers=0) as loader,
            pytest.raises(ConfigError, match=r"a batch is .*, but it must be images and labels, or a dict"),
        ):
            list(gpupipe.TrainerLoader(loader))

    @pytest.mark.parametrize("epoch", [0, 1])
    @pytest.mark.parametrize("skip", [0, 1, 2])
    def test_a_data_loader_built_from_the_parts_goes_on(self, loader: gpupipe.Loader, skip: int, epoch: int) -> None:
        loader.set_epoch(epoch)
        whole = [{name: value.clone() for name, value in batch.items()} for batch in gpupipe.TrainerLoader(loader)]
        loader.set_epoch(0)
        batches = gpupipe.TrainerLoader(loader)
        rebuilt = DataLoader(
            batches.dataset, batch_sampler=list(batches.batch_sampler)[skip:], collate_fn=batches.collate_fn
        )
        batches.batch_sampler.set_epoch(epoch)
        rest = list(rebuilt)
        assert len(rest) == 3 - skip
        for batch, expected in zip(rest, whole[skip:], strict=True):
            assert all(torch.equal(batch[name], expected[name]) for name in expected)

    @pytest.mark.trainers("accelerate")
    def test_accelerate_skips(self, loader: gpupipe.Loader) -> None:
        from accelerate import skip_first_batches

        batches = gpupipe.TrainerLoader(loader)
        batches.set_epoch(1)
        labels = [batch["labels"].tolist() for batch in skip_first_batches(batches, 2)]
        assert labels == [loader_labels(loader, 1, 2)]

    def test_an_unknown_epoch_is_refused(self, loader: gpupipe.Loader) -> None:
        with pytest.raises(ConfigError, match="before set_epoch"):
            gpupipe.TrainerLoader(loader).dataset[1]

    def test_says_how_many_samples_and_batches(self, loader: gpupipe.Loader) -> None:
        batches = gpupipe.TrainerLoader(loader)
        assert (len(batches), len(batches.dataset), len(batches.batch_sampler)) == (3, 10, 3)
        assert (batches.batch_size, batches.drop_last) == (4, False)


def loader_labels(loader: gpupipe.Loader, epoch: int, step: int) -> list[int]:
    """The labels, which are the samples' numbers, of a batch."""
    loader.set_epoch(epoch)
    return np.asarray(loader.batch_indices(step)).tolist()
