"""The Loader's contract, on every engine."""

from __future__ import annotations

import copy
import gc
import json
import multiprocessing
import os
import pickle
import re
import signal
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from images import Numbered, encode, picture
from torch.utils.data import RandomSampler

import gpupipe
from gpupipe.errors import ConfigError
from gpupipe.workers.lease import BufferPool

ENGINES = [
    pytest.param({"engine": "torch", "num_workers": 0}, id="torch-0"),
    pytest.param({"engine": "torch", "num_workers": 2}, id="torch-2"),
    pytest.param({"engine": "dali", "num_workers": 2}, id="dali"),
]
TINY = gpupipe.imagenet_train(32)


def open_loader(data, recipe=TINY, batch_size=4, **options):
    options = {"device": "cpu", "shuffle": True, "seed": 5} | options
    return gpupipe.Loader(data, recipe, batch_size=batch_size, **options)


def ahead(count, engine):
    """The engine with so many batches ahead, where it has workers."""
    return engine | ({"prefetch_factor": count} if engine["num_workers"] else {})


def collect(loader):
    """Copies of an epoch's batches."""
    return [(images.clone(), labels.clone()) for images, labels in loader]


def assert_equal(some, others):
    assert len(some) == len(others)
    for (images, labels), (other_images, other_labels) in zip(some, others, strict=True):
        assert torch.equal(labels, other_labels)
        assert torch.equal(images, other_images)


def check_variables(worker):
    assert ("EARLIER" in os.environ, os.environ.get("LATER")) == (False, "yes")


def interrupt(*arguments, **options):
    raise KeyboardInterrupt


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param


class TestEpochs:
    def test_every_sample_once_with_its_label(self, folder, engine):
        with open_loader(folder, **engine) as loader:
            indices = np.concatenate([loader.batch_indices(step) for step in range(len(loader))])
            labels = torch.cat([labels for _, labels in loader])
        assert sorted(indices.tolist()) == list(range(25))
        assert sorted(labels.tolist()) == [c for c in range(5) for _ in range(5)]

    def test_labels_follow_the_indices(self, folder, engine):
        with open_loader(folder, **engine) as loader:
            indices = [loader.batch_indices(step) for step in range(len(loader))]
            for (_, labels), at in zip(loader, indices, strict=True):
                assert labels.tolist() == loader.dataset.targets[at].tolist()

    @pytest.mark.parametrize("layout", ["NCHW", "channels_last"])
    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
    def test_batches_are_what_the_spec_says(self, folder, engine, dtype, layout):
        recipe = gpupipe.imagenet_train((24, 40), dtype=dtype, layout=layout)
        with open_loader(folder, recipe, **engine) as loader:
            images, labels = next(iter(loader))
        spec = recipe.output_spec(4)
        assert tuple(images.shape) == spec.shape
        assert images.dtype == getattr(torch, spec.dtype)
        memory_format = torch.channels_last if layout == "channels_last" else torch.contiguous_format
        assert images.is_contiguous(memory_format=memory_format)
        assert labels.dtype == torch.int64

    def test_dtypes_hold_the_same_pixels(self, folder, engine):
        batches = {}
        for dtype in ("uint8", "float32", "float16", "bfloat16"):
            with open_loader(folder, gpupipe.imagenet_train(32, dtype=dtype), **engine) as loader:
                batches[dtype] = next(iter(loader))[0].clone()
        mean = torch.tensor(gpupipe.imagenet_train().normalize.mean).view(1, 3, 1, 1)
        std = torch.tensor(gpupipe.imagenet_train().normalize.std).view(1, 3, 1, 1)
        # 1.01 levels: DALI rounds to a level between resize and normalization, or not, as it fuses them.
        for dtype, levels in (("float32", 0.01), ("float16", 0.2), ("bfloat16", 1.2)):
            back = (batches[dtype].float() * std + mean) * 255
            assert (back - batches["uint8"].float()).abs().max() < levels

    def test_epochs_advance_and_differ(self, folder, engine):
        with open_loader(folder, **engine) as loader:
            first, second = collect(loader), collect(loader)
            assert loader.epoch == 2
            loader.set_epoch(0)
            assert_equal(collect(loader), first)
        assert not torch.equal(first[0][0], second[0][0])

    def test_nothing_happens_before_the_first_batch(self, folder, engine):
        with open_loader(folder, **engine) as loader:
            before = loader.state_dict()
            iter(loader)
            assert loader.state_dict() == before

    def test_an_iterator_that_was_not_asked_for_a_batch_ends_no_other(self, folder, engine):
        with open_loader(folder, **engine) as loader:
            whole = collect(loader)
            loader.set_epoch(0)
            first = iter(loader)
            batches = [next(first)]
            early = iter(loader)
            batches += [(images.clone(), labels) for images, labels in first]
            assert_equal(batches, whole)
            loader.set_epoch(0)
            loader.load_state_dict(loader.state_dict() | {"position": 8})
            assert_equal([(images.clone(), labels) for images, labels in early], whole[2:])

    def test_an_older_iterator_says_that_it_has_ended(self, folder, engine):
        with open_loader(folder, **engine) as loader:
            whole = collect(loader)
            loader.set_epoch(0)
            older = iter(loader)
            next(older)
            newer = iter(loader)
            loader.set_epoch(0)
            rest = [next(newer)]
            with pytest.raises(gpupipe.GpupipeError, match="a newer one"):
                next(older)
            del older
            gc.collect()
            rest += [(images.clone(), labels) for images, labels in newer]
            assert_equal(rest, whole)

    def test_an_iterator_that_has_not_begun_survives_what_comes_between(self, folder, engine):
        with open_loader(folder, **engine) as loader:
            whole = collect(loader)
            iterator = iter(loader)
            iter(loader)
            loader.set_epoch(0)
            assert_equal([(images.clone(), labels) for images, labels in iterator], whole)

    def test_set_epoch_ends_an_iteration(self, folder, engine):
        with open_loader(folder, **engine) as loader:
            iterator = iter(loader)
            next(iterator)
            loader.set_epoch(3)
            with pytest.raises(gpupipe.GpupipeError, match="set_epoch"):
                next(iterator)
            assert len(collect(loader)) == len(loader)
            assert loader.epoch == 4

    def test_two_loaders_interleaved(self, folder, engine):
        with open_loader(folder, **engine) as one, open_loader(folder, **engine) as two:
            alone = collect(one)
            one.set_epoch(0)
            pairs = list(zip(one, two, strict=True))
            assert_equal([a for a, _ in pairs], alone)
            assert_equal([b for _, b in pairs], alone)

    @pytest.mark.parametrize(
        ("size", "drop_last", "batches"), [(10, False, 3), (10, True, 2), (8, False, 2), (3, True, 0)]
    )
    def test_length_is_exact(self, folder, engine, size, drop_last, batches):
        order = gpupipe.Subset(range(size), shuffle=True)
        with open_loader(folder, order=order, shuffle=False, drop_last=drop_last, **engine) as loader:
            sizes = [len(labels) for _, labels in loader]
            assert len(loader) == len(sizes) == batches
        assert sum(sizes) == (batches * 4 if drop_last else size)

    def test_leaves_global_random_state_alone(self, folder, engine):
        torch.manual_seed(1)
        before = torch.get_rng_state()
        with open_loader(folder, **engine) as loader:
            collect(loader)
        assert torch.equal(torch.get_rng_state(), before)


class TestOrders:
    def test_sequential_by_default(self, folder):
        with open_loader(folder, shuffle=False, num_workers=0, engine="torch") as loader:
            labels = torch.cat([labels for _, labels in loader])
        assert labels.tolist() == [c for c in range(5) for _ in range(5)]

    def test_torch_samplers_serve_as_orders(self, folder):
        with open_loader(folder, shuffle=False, order=RandomSampler(range(25)), num_workers=0) as loader:
            indices = [i for step in range(len(loader)) for i in loader.batch_indices(step).tolist()]
        assert sorted(indices) == list(range(25))
        assert indices != list(range(25))

    def test_order_and_shuffle_exclude_each_other(self, folder):
        with pytest.raises(gpupipe.ConfigError, match="exclude each other"):
            open_loader(folder, order=gpupipe.Sequential(3))

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (lambda positions: positions + 20, "it gave sample 25 at the positions from 4 on"),
            (lambda positions: positions - 1, "it gave sample -1"),
            (lambda positions: positions[1:], r"shape \(3,\) for 4 positions"),
            (lambda positions: positions * 0.5, "float64"),
        ],
    )
    def test_what_an_order_gives_is_checked(self, folder, given, message):
        class Wrong(gpupipe.Sequential):
            def indices(self, seed, epoch, positions):
                return given(positions)

        with (
            open_loader(folder, shuffle=False, order=Wrong(12), num_workers=0) as loader,
            pytest.raises(gpupipe.ConfigError, match=message),
        ):
            collect(loader)

    def test_lists_and_small_integers_will_do(self, folder):
        class Listed(gpupipe.Sequential):
            def indices(self, seed, epoch, positions):
                return positions.astype(np.int16).tolist()

        with open_loader(folder, shuffle=False, order=Listed(8), num_workers=0) as loader:
            assert loader.batch_indices(1).tolist() == [4, 5, 6, 7]
            assert loader.batch_indices(1).dtype == np.int64

    @pytest.mark.parametrize(
        "order",
        [
            gpupipe.Sequential(26),
            gpupipe.Shuffled(26),
            gpupipe.Subset([0, 25]),
            gpupipe.Weighted([1.0] * 26, num_samples=4),
        ],
    )
    def test_orders_for_a_larger_dataset_are_refused_at_once(self, folder, order):
        with pytest.raises(gpupipe.ConfigError, match="26 samples or more, but this one has 25"):
            open_loader(folder, shuffle=False, order=order)

    def test_anything_else_is_refused(self, folder):
        with pytest.raises(gpupipe.ConfigError, match="must be a gpupipe order or a torch Sampler"):
            open_loader(folder, shuffle=False, order=[1, 2])

    def test_a_users_own_order(self, folder):
        class EverySecond:
            fingerprint = "every-second"

            def __len__(self):
                return 12

            def indices(self, seed, epoch, positions):
                return positions * 2 + epoch % 2

        with open_loader(folder, shuffle=False, order=EverySecond(), num_workers=0) as loader:
            loader.set_epoch(1)
            assert loader.batch_indices(0).tolist() == [1, 3, 5, 7]
            assert len(collect(loader)) == 3


class TestState:
    def test_resumes_at_every_step(self, folder, engine):
        with open_loader(folder, **engine) as loader:
            whole = collect(loader)
            states = [loader.state_dict()]
            loader.set_epoch(0)
            states = [loader.state_dict()] + [loader.state_dict() for _ in loader]
        for step, state in enumerate(states):
            with open_loader(folder, **engine) as resumed:
                resumed.load_state_dict(json.loads(json.dumps(state)))
                assert_equal(collect(resumed), whole[step:])
                assert resumed.epoch == 1

    def test_state_is_what_was_delivered(self, folder, engine):
        with open_loader(folder, **ahead(4, engine)) as loader:
            iterator = iter(loader)
            for delivered in (4, 8, 12):
                next(iterator)
                time.sleep(0.05)  # the queues are full by now
                assert loader.state_dict()["position"] == delivered

    def test_a_batch_that_a_ctrl_c_kept_from_being_finished_was_not_delivered(self, folder, engine, monkeypatch):
        with open_loader(folder, gpupipe.imagenet_train(32, dtype="bfloat16"), **engine) as loader:
            whole = collect(loader)
            loader.set_epoch(0)
            iterator = iter(loader)
            next(iterator)
            with monkeypatch.context() as patches:
                patches.setattr("gpupipe.device.pixels.finish", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    next(iterator)
            assert loader.stats()["batches"] == len(whole) + 1
            loader.load_state_dict(loader.state_dict())
            assert_equal(collect(loader), whole[1:])

    def test_is_small_plain_json(self, folder):
        with open_loader(folder, num_workers=0) as loader:
            assert len(json.dumps(loader.state_dict())) < 1000

    def test_crosses_engines_and_worlds(self, folder):
        with open_loader(folder, engine="torch", num_workers=0) as loader:
            labels = [labels.tolist() for _, labels in collect(loader)]
            loader.set_epoch(0)
            iterator = iter(loader)
            next(iterator), next(iterator)
            state = loader.state_dict()
        halves = []
        for rank in range(2):
            with open_loader(folder, batch_size=2, engine="dali", rank=rank, world_size=2) as resumed:
                resumed.load_state_dict(state)
                halves.append([labels.tolist() for _, labels in resumed])
        rejoined = [left + right for left, right in zip(*halves, strict=True)]
        assert rejoined[:-1] == labels[2:-1]
        assert rejoined[-1][:1] == labels[-1]  # the last global batch has one sample; the other is padding

    def test_resumes_at_the_billionth_of_two_billion(self):
        data = Numbered(2 * 10**9, [encode(picture(8, 8))])
        position = 10**9 - 10**9 % 4
        with open_loader(data, gpupipe.imagenet_train(8), num_workers=0, engine="torch") as loader:
            loader.load_state_dict(loader.state_dict() | {"position": position})
            _, labels = next(iter(loader))
            assert loader.state_dict()["position"] == position + 4
        expected = gpupipe.Shuffled(2 * 10**9).indices(5, 0, np.arange(position, position + 4))
        assert labels.tolist() == expected.tolist()

    def test_set_epoch_to_the_same_epoch_keeps_the_place(self, folder):
        with open_loader(folder, num_workers=0, engine="torch") as loader:
            whole = collect(loader)
            loader.set_epoch(0)
            next(iter(loader))
            state = loader.state_dict()
            collect(loader)
            loader.load_state_dict(state)
            loader.set_epoch(state["epoch"])
            assert_equal(collect(loader), whole[1:])

    def test_set_epoch_to_another_starts_there_and_says_so(self, folder, caplog):
        with open_loader(folder, num_workers=0, engine="torch") as loader:
            next(iter(loader))
            loader.load_state_dict(loader.state_dict())
            loader.set_epoch(3)
            assert "set_epoch(3) drops the loaded state, which stands in epoch 0" in caplog.text
            assert len(collect(loader)) == len(loader)

    def test_set_epoch_after_a_state_at_an_epochs_end_is_silent(self, folder, caplog):
        with open_loader(folder, num_workers=0, engine="torch") as loader:
            iterator = iter(loader)
            for _ in range(len(loader)):
                next(iterator)
            loader.load_state_dict(loader.state_dict())
            loader.set_epoch(1)
            assert not caplog.text
            assert len(collect(loader)) == len(loader)

    @pytest.mark.parametrize(
        ("field", "options"),
        [
            ("seed", {"seed": 6}),
            ("recipe", {"recipe": gpupipe.imagenet_train(33)}),
            ("global_batch", {"batch_size": 5}),
            ("order", {"shuffle": False}),
            ("drop_last", {"drop_last": True}),
        ],
    )
    def test_a_mismatch_names_the_field_and_both_values(self, folder, field, options):
        with open_loader(folder, num_workers=0) as saved, open_loader(folder, **{"num_workers": 0, **options}) as other:
            state = saved.state_dict()
            mine = other.state_dict()[field]
            with pytest.raises(gpupipe.StateError) as error:
                other.load_state_dict(state)
            for part in (field, repr(state[field]), repr(mine)):
                assert part in str(error.value)

    def test_changed_data_is_refused(self, folder, tmp_path):
        with open_loader(folder, num_workers=0) as loader:
            state = loader.state_dict()
        from images import write_folder

        with (
            open_loader(write_folder(tmp_path, classes=5, per_class=5, sizes=((50, 60),)), num_workers=0) as other,
            pytest.raises(gpupipe.StateError, match="source is"),
        ):
            other.load_state_dict(state)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"version": 2}, "version is 2"),
            ({"position": 3}, "position is 3"),
            ({"position": 400}, "position is 400"),
            ({"position": "4"}, "position is '4'"),
            ({"epoch": -1}, "epoch is -1"),
            ({"epoch": "x"}, "epoch is 'x'"),
            ({"epoch": True}, "epoch is True, no int"),
            ({"epoch": 1.0}, "epoch is 1.0, no int"),
            ({"position": -4}, "position is -4"),
            ({"origin": -1}, "origin is -1"),
            ({"version": True}, "version is True"),
            ({"seed": True}, "seed is True, no int"),
            ({"drop_last": 0}, "drop_last is 0, no bool"),
            ({"order": 3}, "order is 3, no str"),
            ({"stream": [1]}, r"stream is \[1\], no dict"),
            ({"next_batch": 3}, "'next_batch' unknown"),
            ({"epoch": "\x1b[31m" * 10**5}, "characters"),
        ],
    )
    def test_damaged_states_are_refused(self, folder, change, message):
        with open_loader(folder, num_workers=0) as loader, pytest.raises(gpupipe.StateError, match=message):
            loader.load_state_dict(loader.state_dict() | change)

    def test_what_is_no_state_is_refused(self, folder):
        with open_loader(folder, num_workers=0) as loader, pytest.raises(gpupipe.StateError, match="got NoneType"):
            loader.load_state_dict(None)

    def test_missing_fields_are_named(self, folder):
        with open_loader(folder, num_workers=0) as loader, pytest.raises(gpupipe.StateError, match="epoch, position"):
            loader.load_state_dict({k: v for k, v in loader.state_dict().items() if k not in ("epoch", "position")})


class TestRanks:
    @pytest.mark.parametrize("world", [1, 2, 4])
    def test_world_sizes_share_the_same_epoch(self, folder, engine, world):
        with open_loader(
            folder, batch_size=8, drop_last=True, rank=0, world_size=1, engine="torch", num_workers=0
        ) as one:
            indices = [one.batch_indices(step).tolist() for step in range(len(one))]
            expected = [(at, *batch) for at, batch in zip(indices, collect(one), strict=True)]
        parts = []
        for rank in range(world):
            with open_loader(
                folder, batch_size=8 // world, drop_last=True, rank=rank, world_size=world, **engine
            ) as loader:
                indices = [loader.batch_indices(step).tolist() for step in range(len(loader))]
                parts.append([(at, *batch) for at, batch in zip(indices, collect(loader), strict=True)])
        for step, (indices, images, labels) in enumerate(expected):
            assert [at for part in parts for at in part[step][0]] == indices
            assert torch.cat([part[step][2] for part in parts]).tolist() == labels.tolist()
            together = torch.cat([part[step][1] for part in parts])
            if engine["engine"] == "torch":
                assert torch.equal(together, images)
            else:  # one level of 255 in units of the normalized images is about 0.017
                assert (together - images).abs().mean() < 0.01

    def test_padding_is_of_the_batch_delivered_last(self, folder):
        loaders = [
            open_loader(folder, batch_size=3, rank=rank, world_size=3, num_workers=0, engine="torch")
            for rank in range(3)
        ]
        assert [len(loader) for loader in loaders] == [3, 3, 3]
        assert [loader.padding for loader in loaders] == [0, 0, 0]
        seen = [[(len(labels), loader.padding) for _, labels in loader] for loader in loaders]
        assert seen == [[(3, 0), (3, 0), (3, 0)], [(3, 0), (3, 0), (3, 0)], [(3, 0), (3, 0), (3, 2)]]
        assert loaders[2].padding == 2  # still, after the epoch
        for loader in loaders:
            loader.set_epoch(0)
        last = [loader.batch_indices(2).tolist() for loader in loaders]
        assert last[2][1:] == loaders[0].batch_indices(0).tolist()[:2]

    def test_from_the_environment(self, folder, monkeypatch):
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with open_loader(folder, num_workers=0) as loader:
            assert (loader.rank, loader.world_size) == (1, 2)

    def test_nonsense_in_the_environment_is_named(self, folder, monkeypatch):
        monkeypatch.setenv("RANK", "one")
        with pytest.raises(gpupipe.ConfigError, match="RANK='one'"):
            open_loader(folder)

    def test_a_world_size_without_a_rank_is_refused(self, folder, monkeypatch):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.delenv("RANK", raising=False)
        with pytest.raises(gpupipe.ConfigError, match="WORLD_SIZE=2 is set, but not RANK"):
            open_loader(folder)

    def test_a_rank_without_world_size_is_refused(self, folder, monkeypatch):
        monkeypatch.setenv("RANK", "3")
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        with pytest.raises(gpupipe.ConfigError, match="RANK=3 is set, but not WORLD_SIZE"):
            open_loader(folder, num_workers=0)

    def test_rank_alone_is_refused(self, folder):
        with pytest.raises(gpupipe.ConfigError, match="rank=1, world_size=None"):
            open_loader(folder, rank=1)


class TestMemory:
    def test_batches_stay_valid_when_the_consumer_lags(self, folder, engine):
        """A buffer that was used again too early would change a batch that is still held."""
        recipe = gpupipe.imagenet_train(64)
        order = gpupipe.Weighted([1.0] * 25, num_samples=120)
        with open_loader(folder, recipe, shuffle=False, order=order, **ahead(2, engine)) as loader:
            held = [(images, images.clone()) for images, _ in loader]
        assert len(held) == 30
        for images, copied in held:
            assert torch.equal(images, copied)

    def test_views_keep_a_batch_alive(self, folder, engine):
        with open_loader(folder, gpupipe.imagenet_train(64), **engine) as loader:
            rows, copies = [], []
            for images, _ in loader:
                rows.append(images[1:, :, ::2].permute(0, 2, 3, 1))
                copies.append(rows[-1].clone())
                del images
            gc.collect()
        for row, copied in zip(rows, copies, strict=True):
            assert torch.equal(row, copied)

    def test_dali_hands_over_its_own_memory(self, folder):
        """The tensor lies over DALI's buffer: no copy in between."""
        from gpupipe.decode.dali.engine import DaliEngine

        recipe = gpupipe.imagenet_train(32, dtype="uint8", layout="channels_last")
        with open_loader(folder, recipe, engine="dali") as loader:
            assert isinstance(loader._engine, DaliEngine)
            seen = []
            original = torch.utils.dlpack.from_dlpack
            torch.utils.dlpack.from_dlpack = lambda buffer: seen.append(buffer) or original(buffer)
            try:
                images, _ = next(iter(loader))
            finally:
                torch.utils.dlpack.from_dlpack = original
            assert images.data_ptr() == seen[0].data_ptr()

    def test_finished_batches_use_memory_again(self):
        pool = BufferPool()
        first = pool.take((4, 5), torch.float32)
        address, view = first.data_ptr(), first[1:]
        del first
        assert pool.take((4, 5), torch.float32).data_ptr() != address
        del view
        assert pool.take((4, 5), torch.float32).data_ptr() == address


class TestLeavesNothingBehind:
    def test_processes_threads_and_files(self, folder, engine):
        def resources():  # themselves, not how many: what an earlier test has left may end meanwhile
            gc.collect()
            files = {(number, os.readlink(f"/proc/self/fd/{number}")) for number in open_files()}
            return {*multiprocessing.active_children(), *threading.enumerate(), *files}

        def open_files():
            return [number for number in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{number}")]

        def left_in_memory():  # by this process, or one that has ended; others are at work, too
            pids = {name: int(pid) for name in os.listdir("/dev/shm") for pid in re.findall(r"^torch_(\d+)_", name)}
            return {name for name, pid in pids.items() if pid == os.getpid() or not psutil.pid_exists(pid)}

        def is_reading():  # for a loader of an earlier test, a second at most
            return any(thread.name.startswith("gpupipe-") for thread in threading.enumerate())

        with open_loader(folder, **engine) as warm:
            collect(warm)
        deadline = time.monotonic() + 10
        while is_reading() and time.monotonic() < deadline:
            time.sleep(0.05)
        before, files = resources(), left_in_memory()
        for _ in range(3):
            with open_loader(folder, **engine) as loader:
                next(iter(loader))
                collect(loader)
        assert not resources() - before
        assert left_in_memory() <= files

    def test_closed_loaders_say_so(self, folder, engine):
        loader = open_loader(folder, **engine)
        iterator = iter(loader)
        next(iterator)
        loader.close()
        assert not multiprocessing.active_children()
        loader.close()
        with pytest.raises(gpupipe.GpupipeError, match="closed"):
            next(iterator)
        with pytest.raises(gpupipe.GpupipeError, match="closed"):
            next(iter(loader))

    def test_persistent_workers_live_on_until_close(self, folder):
        loader = open_loader(folder, engine="torch", num_workers=2, persistent_workers=True)
        first = collect(loader)
        workers = {child.pid for child in multiprocessing.active_children()}
        next(iter(loader))
        loader.set_epoch(0)
        assert_equal(collect(loader), first)
        assert {child.pid for child in multiprocessing.active_children()} == workers
        assert len(workers) == 2
        loader.close()
        assert not multiprocessing.active_children()

    @pytest.mark.parametrize("context", ["spawn", "forkserver"])
    def test_start_methods(self, folder, context):
        with open_loader(folder, engine="torch", num_workers=0) as plain:
            expected = collect(plain)
        with open_loader(folder, engine="torch", num_workers=1, multiprocessing_context=context) as loader:
            assert_equal(collect(loader), expected)

    @pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
    def test_workers_have_the_variables_of_now(self, folder, context, monkeypatch):
        """Where a storage's address or credentials stand; a forkserver has those that it was started with."""
        monkeypatch.setenv("EARLIER", "yes")
        with open_loader(folder, engine="torch", num_workers=1, multiprocessing_context=context) as loader:
            collect(loader)
        monkeypatch.delenv("EARLIER")
        monkeypatch.setenv("LATER", "yes")
        settings = {"num_workers": 1, "multiprocessing_context": context, "worker_init_fn": check_variables}
        with open_loader(folder, engine="torch", **settings) as loader:
            collect(loader)

    def test_a_dropped_loader_goes_at_once(self, folder, engine):
        loader = open_loader(folder, **engine)
        collect(loader)
        gone = weakref.ref(loader)
        gc.disable()
        try:
            del loader
            assert gone() is None
        finally:
            gc.enable()

    def test_forked_processes_leave_inherited_pipelines_alone(self, folder):
        """Collected in a child, a pipeline would wait for ever for its threads, which a fork does not copy."""
        loader = open_loader(folder, engine="dali")
        next(iter(loader))
        circle = [loader._engine._pipeline]
        circle.append(circle)
        loader._engine._pipeline = None
        child = os.fork()
        if child == 0:
            del circle
            gc.collect()
            os._exit(0)
        for _ in range(200):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                break
            time.sleep(0.05)
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child hung in its garbage collection")
        assert status == 0


class Slow:
    """A user's dataset whose storage hangs at one sample."""

    def __init__(self, data: bytes, seconds: float) -> None:
        self.data, self.seconds = data, seconds

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        if index == 9:
            time.sleep(self.seconds)
        return self.data, index


class Deadly(Slow):
    """A user's dataset that kills its worker at one sample."""

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        if index == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.data, index


@pytest.mark.parametrize("persistent", [False, True])
class TestWorkers:
    @pytest.fixture
    def data(self, folder):
        return (folder / "class_0" / "img_0.jpg").read_bytes()

    def test_a_hang_is_a_timeout(self, data, persistent):
        with open_loader(
            Slow(data, 60), engine="torch", num_workers=2, timeout=1, persistent_workers=persistent
        ) as loader:
            for _ in range(2):
                with pytest.raises(gpupipe.LoaderTimeoutError, match="2 workers within timeout=1"):
                    collect(loader)
                assert not multiprocessing.active_children()

    def test_a_killed_worker_is_an_error(self, data, persistent):
        with open_loader(
            Deadly(data, 0), engine="torch", num_workers=2, shuffle=False, persistent_workers=persistent
        ) as loader:
            for _ in range(2):
                with pytest.raises(
                    gpupipe.WorkerError,
                    match=r"worker 1 of 2 \(pid \d+\) was killed by SIGKILL at sample 9 ",
                ):
                    collect(loader)
                assert not multiprocessing.active_children()
            loader.load_state_dict(loader.state_dict() | {"position": 12})
            assert len(collect(loader)) == 1  # new workers take over


class TestSettings:
    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
    def test_a_loader_is_not_copied(self, copied: Callable[[object], object], folder: Path) -> None:
        loader = gpupipe.Loader(folder, gpupipe.imagenet_eval(8), engine="torch", device="cpu", num_workers=0)
        with pytest.raises(ConfigError, match=r"can't be copied or pickled: build another .* state_dict\(\)"):
            copied(loader)

    def test_attributes_that_trainers_touch(self, folder):
        with open_loader(folder, num_workers=0, drop_last=True, engine="torch") as loader:
            assert loader.batch_size == 4
            assert loader.drop_last
            assert loader.num_workers == 0
            assert loader.pin_memory is False
            assert len(loader.dataset) == len(loader.source) == 25
            assert loader.dataset.classes == [f"class_{c}" for c in range(5)]
            assert loader.dataset.class_to_idx == {f"class_{c}": c for c in range(5)}
            assert len(loader.sampler) == 24
            assert list(loader.sampler) == [at for batch in loader.batch_sampler for at in batch]
            assert loader.batch_sampler.sampler is loader.sampler
            assert (len(loader.batch_sampler), loader.batch_sampler.batch_size) == (6, 4)
            assert loader.batch_sampler.drop_last
            loader.sampler.set_epoch(7)
            assert loader.epoch == 7

    def test_sampler_lengths_on_ranks(self, folder):
        for rank in range(3):
            with open_loader(folder, batch_size=3, rank=rank, world_size=3, num_workers=0) as loader:
                assert len(loader.sampler) == len(list(loader.sampler)) == 9

    def test_workers_default_to_the_usable_cpus(self, folder):
        from gpupipe.host.system import default_workers

        with open_loader(folder) as loader:
            assert loader.num_workers == default_workers()

    def test_auto_takes_the_torch_engine_without_a_gpu(self, folder, caplog, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        caplog.set_level("INFO", logger="gpupipe")
        with open_loader(folder, device="auto", num_workers=1) as loader:
            assert loader.engine == "torch"
            assert loader.device == torch.device("cpu")
            collect(loader)
        assert [record.message for record in caplog.records] == ["gpupipe: torch engine, 1 workers, batches on cpu"]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"engine": "dalli"}, "engine='dalli'"),
            ({"device": "tpu9"}, "device='tpu9'"),
            ({"device": "mps"}, "device='mps'"),
            ({"num_workers": -1}, "num_workers=-1"),
            ({"num_workers": 2.5}, "num_workers=2.5"),
            ({"prefetch_factor": -2}, "prefetch_factor=-2"),
            ({"prefetch_factor": 0}, "prefetch_factor=0"),
            ({"timeout": -1}, "timeout=-1"),
            ({"on_error": "ignore"}, "on_error='ignore'"),
            ({"seed": -1}, "seed=-1"),
            ({"seed": "x"}, "seed='x'"),
            ({"batch_size": 0}, "batch_size=0"),
            ({"recipe": "imagenet"}, "recipe='imagenet'"),
        ],
    )
    def test_bad_values_are_named(self, folder, options, message):
        with pytest.raises(gpupipe.ConfigError, match=message):
            open_loader(folder, **options)
        with pytest.raises(gpupipe.ConfigError, match=message):
            open_loader("no/such/folder", **options)  # settings are refused before the data is looked at

    @pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
    def test_a_missing_gpu_is_explained(self, folder):
        with pytest.raises(gpupipe.EngineUnavailableError, match="gpupipe doctor"):
            open_loader(folder, device="cuda")

    def test_missing_dali_is_explained(self, folder, monkeypatch):
        monkeypatch.setattr("gpupipe.decode.choose._dali_problem", lambda: "No module named 'nvidia.dali'")
        with pytest.raises(gpupipe.EngineUnavailableError, match="pip install nvidia-dali-cuda1"):
            open_loader(folder, engine="dali")

    def test_too_small_shared_memory_is_explained(self, folder, monkeypatch):
        monkeypatch.setattr("gpupipe.host.system.shm_bytes_free", lambda *_: 36 << 20)
        monkeypatch.setattr("gpupipe.host.system.shm_bytes_total", lambda *_: 64 << 20)
        with pytest.raises(gpupipe.ConfigError, match=r"36 of its 64 MiB free.* need 258 MiB.*--shm-size=287m"):
            open_loader(folder, gpupipe.imagenet_train(224), batch_size=256, engine="torch", num_workers=2)

    def test_bad_epochs_are_refused(self, folder):
        for epoch in (-1, "1", 2**32):
            with open_loader(folder, num_workers=0) as loader, pytest.raises(gpupipe.ConfigError, match="epoch="):
                loader.set_epoch(epoch)

    def test_an_empty_epoch_is_announced(self, folder, caplog):
        with open_loader(folder, num_workers=0, batch_size=26, drop_last=True) as loader:
            assert len(loader) == 0
        assert "no full batch of 26" in caplog.text
        with open_loader(folder, num_workers=0, shuffle=False, order=gpupipe.Subset([])) as loader:
            assert len(loader) == 0
        assert caplog.text.count("no full batch") == 1
        assert "lists no sample" in caplog.text

    def test_repr_names_the_essentials(self, folder):
        with open_loader(folder, num_workers=0, engine="torch") as loader:
            for part in ("25 samples", "7 batches of 4", "engine='torch'", "rank 0 of 1", "RandomResizedCrop"):
                assert part in repr(loader)


class Encoded:
    """A user's own dataset."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*/*.jpg"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return self.files[index].read_bytes(), int(self.files[index].parent.name[-1])


def test_every_kind_of_source_gives_the_same_batches(folder, shards, engine):
    batches = []
    for data in (folder, shards, Encoded(folder)):
        with open_loader(data, **engine) as loader:
            batches.append(collect(loader))
    assert_equal(batches[0], batches[1])
    assert_equal(batches[0], batches[2])
