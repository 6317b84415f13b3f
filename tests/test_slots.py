"""Memory that is used again must never be written while someone may still read it."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe.batch import Batch, Columns, Job
from gpupipe.workers.memory import SharedMemory
from gpupipe.workers.slots import Message, Slots
from gpupipe.workers.work import Plane

ALIASING = gpupipe.imagenet_train(32, dtype="uint8", layout="channels_last")  # what the consumer gets is a slot itself


def loader(folder: Path, workers: int, **options: object) -> gpupipe.Loader:
    return gpupipe.Loader(
        folder, ALIASING, batch_size=2, shuffle=True, engine="torch", device="cpu", num_workers=workers, **options
    )


@pytest.fixture(scope="module")
def truth(folder: Path) -> list[torch.Tensor]:
    """The first epoch's batches, each copied before the next was made."""
    with loader(folder, 0) as batches:
        return [images.clone() for images, _ in batches]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_that_are_kept_stay_as_they_are(folder: Path, workers: int, truth: list[torch.Tensor]) -> None:
    """There are more of them than slots."""
    with loader(folder, workers) as batches:
        kept = [images for images, _ in batches]
        assert len(kept) > 2 + 2 * workers
        again = [images for images, _ in batches]
        assert all(torch.equal(image, expected) for image, expected in zip(kept, truth, strict=True))
        assert not all(torch.equal(image, expected) for image, expected in zip(again, truth, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_memory_is_used_again(folder: Path, workers: int) -> None:
    addresses = set()
    with loader(folder, workers, persistent_workers=workers > 0) as batches:
        for _ in range(3):
            for images, _ in batches:
                addresses.add(images.data_ptr())
            del images
    assert len(addresses) <= 2 + 2 * workers


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_left_early_gives_its_memory_back(folder: Path, persistent: bool, truth: list[torch.Tensor]) -> None:
    with loader(folder, 2, persistent_workers=persistent) as batches:
        for _ in range(4):
            batches.set_epoch(0)
            held = next(iter(batches))[0]
        batches.set_epoch(0)
        made = [images.clone() for images, _ in batches]
        assert all(torch.equal(image, expected) for image, expected in zip(made, truth, strict=True))
        assert torch.equal(held, truth[0])
        slots = batches._engine._slots
        del held
        assert sorted([*slots._free, *slots._given]) == list(range(6))


def test_workers_that_are_spawned_write_into_the_same_memory(folder: Path, truth: list[torch.Tensor]) -> None:
    with loader(folder, 1, multiprocessing_context="spawn") as batches:
        made = [images.clone() for images, _ in batches]
    assert all(torch.equal(image, expected) for image, expected in zip(made, truth, strict=True))


def plane(name: str, *shape: int, view: int = 0, dtype: torch.dtype = torch.uint8) -> Plane:
    return Plane(name, view, shape, dtype)


def job(count: int, step: int = 0) -> Job:
    return Job(0, 0, np.arange(count), np.arange(count), step)


def test_a_slot_is_free_when_its_last_view_is_gone() -> None:
    slots = Slots(2, 3, [plane("image", 4)], shared=False)
    first, second = slots.give(job(2)), slots.give(job(2))
    assert {first, second} == {0, 1}
    assert slots.give(job(2)) is None
    slots.batch(first, 3)["image"][0].fill_(7)
    (images,) = slots.lend(first, 2)["image"]
    view = images[1:]
    del images
    assert view.tolist() == [[7] * 4]
    assert slots.give(job(2)) is None
    del view
    assert slots.give(job(2)) == first
    slots.take_back()
    assert {slots.give(job(2)), slots.give(job(2))} == {0, 1}
    np.testing.assert_array_equal(slots.batch(first, 3)["image"][0].numpy(), np.full((3, 4), 7))


def test_who_keeps_two_batches_gets_copies_so_that_workers_always_have_slots() -> None:
    slots, kept = Slots(5, 2, [plane("image", 4)], shared=False), []
    for number in range(20):
        slot = slots.give(job(2))
        assert slot is not None
        slots.batch(slot, 2)["image"][0].fill_(number)
        kept.append(slots.lend(slot, 2)["image"][0])
        assert len(slots._free) >= 3
    assert [int(images[0, 0]) for images in kept] == list(range(20))


def test_planes_lie_apart_in_a_slot_and_come_back_together() -> None:
    layout = [plane("image", 2, 2), plane("image", 5, view=1), plane("mask", 3, dtype=torch.int64), plane("odd", 1)]
    slots = Slots(1, 3, layout, shared=False)
    slot = slots.give(job(2))
    assert slot == 0
    made = slots.batch(slot, 3)
    for number, view in enumerate((*made["image"], *made["mask"], *made["odd"]), start=1):
        view.fill_(number)
    lent = slots.lend(slot, 2)
    assert [view.tolist() for view in lent["image"]] == [[[[1, 1], [1, 1]]] * 2, [[2] * 5] * 2]
    (mask,) = lent["mask"]
    assert (mask.dtype, mask.tolist()) == (torch.int64, [[3] * 3] * 2)
    assert lent.pop("odd")[0].tolist() == [[4]] * 2
    del lent["image"]
    assert slots.give(job(2)) is None
    del mask, lent
    assert slots.give(job(2)) == slot


class TestWhatABatchHasBesideItsPlanes:
    """A slot's file has room behind what is mapped."""

    def put(self, slots: Slots, step: int, columns: Columns) -> Message:
        asked = job(2, step)
        slot = slots.give(asked)
        assert slot is not None
        slots.batch(slot, 2)["image"][0].fill_(step)
        planes = slots.batch(slot, 2)
        failed = {1: gpupipe.SampleError(1, "here", "bad" * 9000)}
        return slots.put(slot, Batch(asked, {"first": 1, **planes, **columns}, failed, bytes_read=step))

    @pytest.mark.parametrize("room", [True, False])
    def test_it_comes_with_the_job_and_the_message_stays_small(
        self, room: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slots = Slots(3, 2, [plane("image", 4)], shared=True)
        if not room:
            full = OSError(errno.ENOSPC, "No space left on device")
            monkeypatch.setattr(os, "pwrite", mock.Mock(side_effect=full))
        large = torch.randn(3, 50_000)
        messages = [
            self.put(slots, step, {"text": ["a", "bc"], "large": large + step, "number": np.arange(step)})
            for step in (1, 2)
        ]
        monkeypatch.undo()
        for step, message in zip((1, 2), messages, strict=True):
            assert (len(pickle.dumps(message)) < 4096) == room
            batch = slots.take(message)
            assert (batch.job.step, batch.bytes_read) == (step, step)
            assert list(batch.columns) == ["first", "image", "text", "large", "number"]
            assert batch.columns["image"][0].tolist() == [[step] * 4] * 2
            assert batch.columns["text"] == ["a", "bc"]
            assert torch.equal(batch.columns["large"], large + step)
            batch.columns["large"] += 1  # it is the consumer's own
            np.testing.assert_array_equal(batch.columns["number"], np.arange(step))
            assert batch.failures[1].reason == "bad" * 9000

    def test_other_faults_are_raised(self, monkeypatch: pytest.MonkeyPatch) -> None:
        slots = Slots(1, 2, [plane("image", 4)], shared=True)
        monkeypatch.setattr(os, "pwrite", mock.Mock(side_effect=OSError(errno.EIO, "Input/output error")))
        with pytest.raises(OSError, match="Input/output"):
            self.put(slots, 0, {})


def test_memory_that_a_full_disk_lacks_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(gpupipe.ConfigError, match=r"/dev/shm has no room for the 3 MiB .*--shm-size=6m"):
        SharedMemory(3 << 20)
