"""What jobs say of a cache, against the plan and against a cache that does as it is told."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from images import encode, picture

import gpupipe
from gpupipe import Image, Images, Scalar, Schema, Source
from gpupipe.loader.distributed import ranks_of_node
from gpupipe.loader.keeping import room_for
from gpupipe.order import Buckets, Future, RankBatches, Shuffled, Weighted, cut_by
from gpupipe.order.retention import Retention
from gpupipe.sources.remote.cache import BlockCache, on_disk

SAMPLES = 60
SMALL = encode(picture(8, 8), "PNG")


class Stored(Source):
    """Images in a storage, behind a cache that does what jobs say; `fetched` are those that it did not have."""

    fields, fingerprint, looks_ahead = Schema({"image": Image(), "label": Scalar()}), "stored", 1

    def __init__(self, folder, disk=None, size=10**6, samples=SAMPLES):
        self.reading = SimpleNamespace(cache=gpupipe.Cache(folder, size))
        self.disk = set() if disk is None else disk
        self.coming, self.fetched, self.samples = [], [], samples
        self.bytes = np.random.default_rng(0).integers(1, 20_000, samples)

    def __len__(self):
        return self.samples

    def stored_bytes(self, indices):
        return self.bytes[indices]

    def ahead(self, coming):
        if coming.turns == 0:
            self.coming.clear()
        self.coming.append(coming)

    def fetch(self, indices):
        coming = self.coming.pop(0)
        assert coming.indices.tolist() == indices.tolist()
        self.fetched += [index for index in indices.tolist() if index not in self.disk]
        self.disk |= {*indices[[] if coming.keep is None else coming.keep].tolist()}
        self.disk -= {*coming.drop.tolist()}
        data = [np.frombuffer(SMALL, np.uint8)] * len(indices)
        return {"image": Images(data, np.tile(np.int32([8, 8, 1]), (len(indices), 1))), "label": indices}


@pytest.fixture(autouse=True)
def one_rank_a_node(monkeypatch):
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def loader_of(source, rank=0, world_size=1, **options):
    options = {"batch_size": 3, "shuffle": True, "num_workers": 0, "engine": "torch", **options}
    recipe = gpupipe.imagenet_eval(8)
    return gpupipe.Loader(source, recipe, rank=rank, world_size=world_size, device="cpu", **options)


def missed(source, size, epochs, ranks=range(1), world=4, sharing=1.0, begin=0, order=None):
    """What a plan says that the node's ranks fetch, by epoch."""
    space = float(on_disk(source.bytes).mean())
    room = room_for(size * sharing, space * 3 * len(ranks), 2 * 2 + 2, space * len(ranks))
    order = order or Shuffled(SAMPLES)
    future = Future(order, 0, RankBatches(SAMPLES, 3, 0, world, cut=cut_by(order, 0)), ranks)
    plan = Retention(future, lambda indices: on_disk(source.bytes[indices]), *room, (begin, 0))
    found = []
    for epoch in range(begin, begin + epochs):
        steps = [plan.at(epoch, step) for step in range(len(future.cut(epoch)))]
        found.append(sorted(index for step in steps for index in step.indices[~step.hits].tolist()))
    return found


def epochs_of(loader, source, epochs):
    found = []
    for _ in range(epochs):
        source.fetched.clear()
        for _ in loader:
            pass
        found.append(sorted(source.fetched))
    return found


def test_each_epoch_fetches_what_was_planned(tmp_path):
    source = Stored(tmp_path, size=300_000)
    with loader_of(source, world_size=4) as loader:
        found = epochs_of(loader, source, 8)
    assert found == missed(source, 300_000, 8)
    assert len(found[0]) == 15
    assert sum(map(len, found[1:])) < 85


def test_an_order_that_says_nothing_of_what_comes_has_what_was_used_last(tmp_path):
    """What is dropped is there for some steps more."""
    source, order = Stored(tmp_path, size=300_000), Weighted(np.arange(1, SAMPLES + 1))
    with loader_of(source, world_size=4, order=order, shuffle=False) as loader:
        found = epochs_of(loader, source, 8)
    planned = missed(source, 300_000, 8, order=order)
    assert all({*some} <= {*expected} for some, expected in zip(found, planned, strict=True))
    assert 40 < sum(map(len, found)) < 110


BUCKETS = Buckets(np.arange(SAMPLES) % 7 // 2, [12, 12, 8, 5])


def options_of(order):
    return {} if order is None else {"order": order, "shuffle": False}


@pytest.mark.parametrize("order", [None, BUCKETS], ids=["shuffled", "buckets"])
def test_ranks_of_a_node_have_one_plan(tmp_path, monkeypatch, order):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    disk, options = set(), options_of(order)
    sources = [Stored(tmp_path, disk, 300_000) for _ in range(2)]
    with loader_of(sources[0], 2, 4, **options) as first, loader_of(sources[1], 3, 4, **options) as second:
        for planned in missed(sources[0], 300_000, 6, range(2, 4), sharing=0.5, order=order):
            for _ in zip(first, second, strict=True):
                pass
            fetched = sorted(sources[0].fetched + sources[1].fetched)
            assert fetched == planned if order is None else {*fetched} == {*planned}  # padding is read once
            for source in sources:
                source.fetched.clear()


@pytest.mark.parametrize("order", [None, BUCKETS], ids=["shuffled", "buckets"])
def test_a_run_that_is_resumed_goes_on_with_its_plan(tmp_path, order):
    source, options = Stored(tmp_path, size=300_000), options_of(order)
    planned = missed(source, 300_000, 8, order=order)
    with loader_of(source, world_size=4, **options) as loader:
        epochs_of(loader, source, 3)
        found = []
        source.fetched.clear()
        for number, _ in enumerate(loader):
            if number == 2:
                break
        state = loader.state_dict()
        read = sum(len(loader.batch_indices(step)) for step in range(3))
    other = Stored(tmp_path, source.disk, size=300_000)
    with loader_of(other, world_size=4, **options) as resumed:
        resumed.load_state_dict(state)
        for _ in resumed:
            pass
        found = [sorted(source.fetched[:read] + other.fetched), *epochs_of(resumed, other, 4)]
    assert [*map(set, found)] == [*map(set, planned[3:])]


@pytest.mark.parametrize("left_at", [1, 4])
def test_what_was_left_early_begins_again_where_its_plan_stands(tmp_path, left_at):
    """The samples of steps that were left out are fetched when they come; nothing else is fetched beyond the plan."""
    source = Stored(tmp_path, size=300_000)
    planned = missed(source, 300_000, 10)
    with loader_of(source, world_size=4) as loader:
        epochs_of(loader, source, 3)
        seen = {index for part in planned[:3] for index in part}
        for number, _ in enumerate(loader):
            if number == left_at:
                break
        never_read = {*range(SAMPLES)} - seen - {*source.fetched}
        later = epochs_of(loader, source, 6)
    for found, expected in zip(later, planned[4:], strict=True):
        assert {*expected} <= {*found}
        assert len(found) <= len(expected) + len(never_read)


def test_loaders_that_share_a_cache_have_a_part_each(tmp_path):
    """By the bytes of their data, in whatever order they are built; what is closed has none."""
    train, val = Stored(tmp_path, size=400_000), Stored(tmp_path, size=400_000)
    with loader_of(train, world_size=4) as one, loader_of(val, world_size=4) as other:
        assert epochs_of(one, train, 5) == missed(train, 400_000, 5, sharing=0.5)
        assert epochs_of(other, val, 5) == missed(val, 400_000, 5, sharing=0.5)
    alone = Stored(tmp_path, size=400_000)
    with loader_of(alone, world_size=4) as one:
        assert epochs_of(one, alone, 5) == missed(alone, 400_000, 5)


def test_jobs_of_local_data_say_nothing(tmp_path):
    class Local(Stored):
        def stored_bytes(self, indices):
            return None

    source = Local(tmp_path)
    with loader_of(source) as loader:
        assert loader._supply._keeping is None
        next(iter(loader))
    assert not (tmp_path / "gpupipe-blocks").exists()


def test_a_cache_of_no_use_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(BlockCache, "size", lambda self: 0)
    source = Stored(tmp_path)
    with loader_of(source) as loader:
        epochs_of(loader, source, 2)
    assert not source.disk


@pytest.mark.parametrize(
    ("environment", "rank", "world", "ranks"),
    [
        ({}, 5, 8, range(5, 6)),
        ({"LOCAL_WORLD_SIZE": "4"}, 5, 8, range(4, 8)),
        ({"LOCAL_WORLD_SIZE": "3", "LOCAL_RANK": "0"}, 5, 8, range(5, 8)),
        ({"LOCAL_WORLD_SIZE": "8"}, 0, 1, range(1)),
        ({"LOCAL_WORLD_SIZE": "8", "LOCAL_RANK": "3"}, 0, 1, range(1)),
    ],
)
def test_the_ranks_of_a_node(monkeypatch, environment, rank, world, ranks):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ranks_of_node(rank, world) == ranks


def test_what_is_under_way_has_room_of_its_own():
    assert room_for(10_000, 100, 5, 300) == (10_000 - 1.5 * (300 + 700), 7)
    assert room_for(1000, 100, 5, 300) == (750, 7)
    assert room_for(0, 100, 5, 300) == (0, 7)


def test_a_cache_is_for_data_that_is_opened_by_url(folder):
    with pytest.raises(gpupipe.ConfigError, match="for data by URL"):
        gpupipe.Loader(folder, gpupipe.imagenet_eval(8), cache="1G")
    with pytest.raises(gpupipe.ConfigError, match="opened already"):
        gpupipe.Loader(gpupipe.open_source(folder), gpupipe.imagenet_eval(8), cache=None)
    with pytest.raises(gpupipe.ConfigError, match="for data by URL"):
        gpupipe.Loader(torch.utils.data.TensorDataset(torch.zeros(3)), cache=None)
