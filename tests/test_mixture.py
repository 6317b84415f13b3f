"""Several sources in one, by weight, through the Loader."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engines import forked
from images import Numbered, encode, picture, write_folder
from tars import jpeg, write_samples
from test_dataset_draws import Drawing
from torch.utils.data import SequentialSampler

import gpupipe
from gpupipe.batch import Coming, Job
from gpupipe.batch.columns import Images
from gpupipe.decode.fetching import fetch
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.order import BlockShuffled, Repeated, SamplerOrder, Sequential
from gpupipe.sources import MixtureSource, Source, check_source, open_source

RECIPE = gpupipe.imagenet_eval(16, resize=16, dtype="uint8")
LABELLED = {"image": gpupipe.Image(), "label": gpupipe.Scalar()}
SIZES = {"photos": 12, "shards": 20, "own": 5}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    """An image folder, shards, and a dataset."""
    place = tmp_path_factory.mktemp("parts")
    return {
        "photos": open_source(write_folder(place / "photos")),
        "shards": open_source([write_samples(place / f"{number}.tar", 10 * number, 10) for number in range(2)]),
        "own": open_source(Numbered(5, [jpeg(90 + number) for number in range(5)]), fields=LABELLED),
    }


@pytest.fixture(scope="module")
def pixels(parts: dict[str, Source]) -> dict[str, torch.Tensor]:
    """The image of each sample, by its key, loaded from its source alone."""
    made = {}
    for name, part in parts.items():
        with gpupipe.Loader(part, RECIPE, 4, engine="torch", num_workers=0) as loader:
            for images, _ in loader:
                for index, image in zip(loader.last_indices, images, strict=True):
                    made[f"{name}/{part.key(index)}"] = image.clone()
    return made


def mixture(parts: dict[str, Source], *weights: Any, **options: Any) -> gpupipe.Mixture:
    weights = weights or (0.5, 0.2, 0.3)
    return gpupipe.Mixture(
        {name: (part, weight) for (name, part), weight in zip(parts.items(), weights, strict=True)}, **options
    )


def loaded(data: Any, batch_size: int = 8, **options: Any) -> gpupipe.Loader:
    options = {"engine": "torch", "num_workers": 0, "device": "cpu", "shuffle": True, "seed": 4} | options
    return gpupipe.Loader(data, RECIPE, batch_size, **options)


def keys_of(loader: gpupipe.Loader) -> list[list[str]]:
    """Of each batch of the next epoch."""
    return [[loader.source.key(index) for index in loader.last_indices] for _ in loader]  # type: ignore[union-attr]


def of(name: str, keys: list[list[str]]) -> list[str]:
    return [key for batch in keys for key in batch if key.startswith(f"{name}/")]


def test_keeps_what_every_source_promises(parts: dict[str, Source]) -> None:
    check_source(open_source(mixture(parts)))


def test_what_is_known_of_the_sources_stays_known(parts: dict[str, Source]) -> None:
    known = {name: parts[name] for name in ("shards", "photos")}
    source = open_source(mixture(known, 1, 1))
    assert len(source) == 32
    assert source.column("key") == [f"{name}/{key}" for name, part in known.items() for key in part.column("key")]
    assert [source.key(index) for index in range(32)] == source.column("key")
    assert source.location(21) == parts["photos"].location(1)
    assert list(source.column("index")) == list(range(32))
    labels = [*parts["shards"].targets, *parts["photos"].targets]
    assert source.targets.tolist() == list(source.column("label")) == labels
    assert not source.targets.flags.writeable
    sizes = np.concatenate([part.shapes(np.arange(len(part))) for part in known.values()])
    assert np.array_equal(source.shapes(np.arange(32)), sizes)
    assert np.array_equal(source.shapes(np.array([31, 0, 20])), sizes[[31, 0, 20]])
    with_own = open_source(mixture(parts))
    assert with_own.shapes(np.array([3, 33])) is None
    assert with_own.shapes(np.array([3])) is not None
    with pytest.raises(DataError, match="the labels of DatasetSource"):
        _ = with_own.targets
    assert source.filter(lambda columns: columns["label"] == 1).column("key") == [
        key for key, label in zip(source.column("key"), labels, strict=True) if label == 1
    ]


@pytest.mark.parametrize(("engine", "workers"), [("torch", 0), ("torch", 2), ("dali", 1)])
def test_batches_are_the_sources_samples_in_their_shares(
    engine: str, workers: int, parts: dict[str, Source], pixels: dict[str, torch.Tensor]
) -> None:
    counts = {"photos": 0, "shards": 0, "own": 0}
    with loaded(mixture(parts, num_samples=80), engine=engine, num_workers=workers) as loader:
        for epoch in range(3):
            for images, labels in loader:
                indices = loader.last_indices
                keys = [loader.source.key(index) for index in indices]
                for key in keys:
                    counts[key.split("/")[0]] += 1
                expected = torch.stack([pixels[key] for key in keys])
                if engine == "torch":
                    assert torch.equal(images, expected)
                else:
                    assert (images.int() - expected.int()).abs().float().mean() < 1
                assert labels.tolist() == [int(loader.source[index][1]) for index in indices]
            stats = loader.stats()
            assert counts == {"photos": 40 * (epoch + 1), "shards": 16 * (epoch + 1), "own": 24 * (epoch + 1)}
            assert counts == {name: stats[f"images/{name}"] for name in counts}
            assert {name: stats[f"epochs/{name}"] for name in counts} == {
                name: count / SIZES[name] for name, count in counts.items()
            }


def test_sources_go_through_their_own_epochs(parts: dict[str, Source]) -> None:
    with loaded(mixture(parts, num_samples=60)) as loader:
        epochs = [keys_of(loader) for _ in range(2)]
    for name, a_whole in (("photos", 60), ("shards", 20), ("own", 35)):  # of 30, 12, 18 in each epoch, whole passes
        drawn = [key for keys in epochs for key in of(name, keys)]
        assert len(drawn) == {"photos": 60, "shards": 24, "own": 36}[name]
        counts = sorted(drawn.count(f"{name}/{key}") for key in parts[name].column("key"))
        extra = len(drawn) - a_whole
        passes = a_whole // SIZES[name]
        assert counts == [passes] * (SIZES[name] - extra) + [passes + 1] * extra
    assert of("photos", epochs[0]) != of("photos", epochs[1])


def test_without_shuffling_each_comes_in_turn(parts: dict[str, Source]) -> None:
    with loaded(mixture(parts, num_samples=64), shuffle=False) as loader:
        first, second = (keys_of(loader) for _ in range(2))
    for name, count in (("photos", 32), ("shards", 13), ("own", 19)):
        names = [f"{name}/{key}" for key in parts[name].column("key")] * 9
        drawn = of(name, first), of(name, second)
        assert sorted(drawn[0]) == sorted(names[:count])
        assert sorted(drawn[1]) == sorted(names[count : 2 * count])


def test_ranks_share_the_same_global_batches(parts: dict[str, Source]) -> None:
    data = mixture(parts, num_samples=70)
    batches = {}
    for world in (1, 2, 4):
        loaders = [loaded(data, 8 // world, rank=rank, world_size=world, drop_last=True) for rank in range(world)]
        epochs = [[keys_of(loader) for loader in loaders] for _ in range(2)]
        batches[world] = [[list(chain(*step)) for step in zip(*ranks, strict=True)] for ranks in epochs]
    assert batches[1] == batches[2] == batches[4]


@pytest.mark.parametrize("steps", [3, 9, 14])
def test_resumes_at_any_step_on_other_ranks(steps: int, parts: dict[str, Source]) -> None:
    data = mixture(parts, [0.5, 0.1], 0.2, lambda epoch: 0.3 + epoch / 10, num_samples=72)
    with loaded(data) as loader:
        whole = list(chain.from_iterable(keys_of(loader) for _ in range(3)))
    with loaded(data) as loader:
        for _ in range(2):
            for _ in loader:
                if loader.epoch * 9 + loader.last_step + 1 == steps:
                    break
            else:
                continue
            break
        state, stats = loader.state_dict(), loader.stats()
    resumed = []
    for rank in range(2):
        with loaded(data, 4, rank=rank, world_size=2) as loader:
            loader.load_state_dict(state)
            now = loader.stats()
            assert {name: now[name] for name in now if name.startswith("epochs/")} == {
                name: stats[name] for name in stats if name.startswith("epochs/")
            }
            resumed.append(list(chain.from_iterable(keys_of(loader) for _ in range(3 - loader.epoch))))
    assert [list(chain(*step)) for step in zip(*resumed, strict=True)] == whole[steps:]
    with (
        loaded(mixture(parts, num_samples=72)) as loader,
        pytest.raises(gpupipe.StateError, match="order is 'mixture-"),
    ):
        loader.load_state_dict(state)


def test_orders_of_sources_and_mixtures_in_mixtures(parts: dict[str, Source]) -> None:
    blocks = BlockShuffled.of_shards(parts["shards"], 1)
    inner = gpupipe.Mixture({"a": (parts["own"], 3), "b": (parts["own"], 1)}, num_samples=8)
    data = gpupipe.Mixture(
        {"shards": (parts["shards"], 1), "both": (inner, 1)}, num_samples=32, orders={"shards": blocks}
    )
    with loaded(data, 32) as loader:
        (keys,) = keys_of(loader)
        assert loader.dataset is loader.source
    first = [key < "shards/s/0010" for key in of("shards", [keys])]
    assert sorted([first.count(True), first.count(False)]) == [6, 10]  # one shard, then the other
    assert len(of("both/a", [keys])) == 12  # of two epochs of the mixture in it
    assert len(set(of("both/b", [keys]))) == 4
    # An order of one's own goes over all samples, one source behind the other; one may be made of the mixture's.
    with loaded(data, order=Sequential(30), shuffle=False) as loader:
        assert [loader.source.part_of(loader.last_indices).tolist() for _ in loader][2] == [0] * 4 + [1] * 4
        assert "epochs/shards" not in loader.stats()
    source = open_source(mixture(parts))
    with loaded(source, order=Repeated(source.usual_order(True), 2), shuffle=False) as loader:
        (first, *_) = keys_of(loader)
        assert first[0] == first[2]


def test_an_order_for_more_samples_than_its_source_has_is_refused(parts: dict[str, Source]) -> None:
    """A sampler does not say of how many it is."""
    order = SamplerOrder(SequentialSampler(range(20)))
    data = gpupipe.Mixture({"own": (parts["own"], 1), "photos": (parts["photos"], 0)}, 20, orders={"own": order})
    with loaded(data, 20) as loader, pytest.raises(ConfigError, match=r"of 'own', .* gave sample \d+, but it has 5"):
        list(loader)


def test_a_bad_sample_is_named_where_it_lies_and_replaced(parts: dict[str, Source], tmp_path: Path) -> None:
    folder = open_source(write_folder(tmp_path / "bad"))
    Path(folder.location(5)).write_bytes(b"")
    data = gpupipe.Mixture({"good": (parts["photos"], 1), "bad": (folder, 1)}, num_samples=48)
    with loaded(data) as loader, pytest.raises(SampleError, match=r"sample 17 \(.*/bad/class_1/img_1.jpg\)"):
        list(loader)
    with loaded(data, on_error="skip") as loader:
        keys = keys_of(loader)
        assert [error.index for error in loader.bad_samples] == [17]
        assert "bad/class_1/img_1.jpg" not in chain(*keys)
        stats = loader.stats()
        assert stats["images/good"] + stats["images/bad"] == 48


# Classes, fields and other settings.


def named(path: Path, *classes: str) -> Source:
    for number, name in enumerate(classes):
        (path / name).mkdir(parents=True)
        (path / name / "0.jpg").write_bytes(encode(picture(20, 20, number)))
    return open_source(path)


def test_classes_are_renumbered_by_name(tmp_path: Path, parts: dict[str, Source]) -> None:
    pets, zoo = named(tmp_path / "pets", "cat", "dog"), named(tmp_path / "zoo", "dog", "emu", "yak")
    sources = {"pets": (pets, 1), "zoo": (zoo, 1), "numbers": (parts["shards"].select([3]), 1)}
    with pytest.raises(ConfigError, match=r"'pets' names 2 classes and 'zoo' 3, which differ at 'cat' and 'dog'"):
        open_source(gpupipe.Mixture(sources))
    with pytest.raises(ConfigError, match=r"classes lacks 1 of those that 'zoo' names, the first 'emu'"):
        open_source(gpupipe.Mixture(sources, classes=["cat", "dog", "yak"]))
    names = ["yak", "dog", "emu", "cat"]
    source = open_source(gpupipe.Mixture(sources, classes=names))
    check_source(source)
    assert (source.classes, source.class_to_idx) == (names, {"yak": 0, "dog": 1, "emu": 2, "cat": 3})
    assert source.targets.tolist() == [3, 1, 1, 2, 0, 3]  # the last is a number as it was
    assert source.fetch(np.array([5, 0, 4]))["label"].tolist() == [3, 3, 0]
    assert source.class_counts == {"yak": 1, "dog": 2, "emu": 1, "cat": 2}
    other = open_source(gpupipe.Mixture(sources, classes=names[::-1]))
    assert other.fingerprint != source.fingerprint
    same = open_source(gpupipe.Mixture({"a": (pets, 1), "b": (pets.select([1]), 1)}))
    assert (same.classes, same.targets.tolist()) == (["cat", "dog"], [0, 1, 1])


def test_labels_of_a_source_without_names_are_warned_of(
    tmp_path: Path, parts: dict[str, Source], caplog: pytest.LogCaptureFixture
) -> None:
    """They are numbers as they were, which may mean something else; not where the names are given."""
    pets, numbers = named(tmp_path / "pets", "cat", "dog"), parts["shards"].select([1])
    sources = {"pets": (pets, 1), "numbers": (numbers, 1)}
    open_source(gpupipe.Mixture(sources, classes=["cat", "dog"]))
    open_source(gpupipe.Mixture({"a": (pets, 1), "b": (pets, 1)}))
    open_source(gpupipe.Mixture({"a": (numbers, 1), "b": (numbers, 1)}))
    assert not caplog.messages
    open_source(gpupipe.Mixture(sources))
    (message,) = caplog.messages
    assert "'pets' names its classes and 'numbers' does not" in message


def test_labels_without_a_name_are_bad_samples(tmp_path: Path) -> None:
    class Pets(list[Any]):
        classes = ("cat", "dog")

    pets = open_source(Pets([(jpeg(0), 1), (jpeg(1), -1), (jpeg(2), None)]), fields=LABELLED)
    sources = {"zoo": (named(tmp_path / "zoo", "dog", "emu"), 1), "pets": (pets, 1)}
    source = open_source(gpupipe.Mixture(sources, classes=["cat", "dog", "emu"]))
    assert source.fetch(np.array([0, 1, 2]))["label"].tolist() == [1, 2, 1]
    columns = source.fetch(np.array([4, 2]))["label"]
    assert repr(columns) == "[MISSING, 1]"
    with pytest.raises(SampleError, match=r"sample 3 \(Pets\[1\]\): its label -1 is none of the 2 classes .*'pets'"):
        source.fetch(np.array([2, 3]))
    with loaded(source, 4, **forked(1), on_error="skip") as loader:
        assert {label for _, labels in loader for label in labels.tolist()} <= {1, 2}
        assert {error.index for error in loader.bad_samples} <= {3, 4}


def test_fields_must_be_the_same_wherever_they_lie(parts: dict[str, Source], tmp_path: Path) -> None:
    elsewhere = {"image": gpupipe.Image("jpg"), "label": gpupipe.Scalar("cls")}
    shards = open_source(write_samples(tmp_path / "0.tar", 0, 4), fields=elsewhere)
    check_source(open_source(gpupipe.Mixture({"a": (parts["photos"], 1), "b": (shards, 1)})))
    usual = open_source(Numbered(5, [jpeg(0)] * 5))
    with pytest.raises(ConfigError, match=r"'label' is Scalar\(.*\) in 'a' and Array\(.*\) in 'b'; pass fields="):
        open_source(gpupipe.Mixture({"a": (parts["photos"], 1), "b": (usual, 1)}))
    keyed = {"image": gpupipe.Image(), "label": gpupipe.Scalar(), "key": gpupipe.Key(), "index": gpupipe.Index()}
    with pytest.raises(ConfigError, match=r"'key' is not there in 'a' and Key\(.*\) in 'b'"):
        open_source(
            gpupipe.Mixture({"a": (parts["photos"], 1), "b": (open_source(tmp_path / "0.tar", fields=keyed), 1)})
        )
    paths = gpupipe.Mixture({"a": (tmp_path / "0.tar", 1), "b": ([str(tmp_path / "0.tar")], 1)}, num_samples=8)
    with gpupipe.Loader(paths, RECIPE, 8, fields=keyed, engine="torch", num_workers=0) as loader:
        (batch,) = loader
    assert batch["index"].tolist() == loader.last_indices.tolist()
    assert batch["key"] == [loader.source.key(index) for index in loader.last_indices]
    assert sorted(batch["key"]) == [f"{name}/s/000{number}" for name in "ab" for number in range(4)]
    assert batch["label"].tolist() == [int(key[-1]) for key in batch["key"]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda part: gpupipe.Mixture({}), "must be a dict of a name and"),
        (lambda part: gpupipe.Mixture([part]), "must be a dict of a name and"),  # type: ignore[arg-type]
        (lambda part: gpupipe.Mixture({"a": part}), r"'a' is .*; it must be \(data, weight\)"),
        (lambda part: gpupipe.Mixture({"a/b": (part, 1)}), "the name 'a/b' must be a text without '/'"),
        (lambda part: gpupipe.Mixture({"a": (part, -1)}), "the weight of 'a' is -1"),
        (lambda part: gpupipe.Mixture({"a": (part, 1)}, orders={"b": Sequential(3)}), "orders has 'b', but .* are a"),
        (lambda part: gpupipe.Mixture({"a": (part, 1)}, orders={"a": [1, 2]}), "order of 'a': list is no order"),
        (
            lambda part: gpupipe.Mixture({"a": (part, 1)}, orders={"a": Sequential(13)}),
            "of 'a', .* is for 13 .* has 12",
        ),
        (lambda part: gpupipe.Mixture({"a": (part, 0)}), r"the weights of epoch 0 are \[0.0\]"),
        (lambda part: gpupipe.Mixture({"a": (part, 1)}, num_samples=0), "num_samples=0"),
        (lambda part: gpupipe.Mixture({"a": (gpupipe.Stream(lambda number: []), 1)}), "'a' is a stream"),
    ],
)
def test_refuses_what_does_not_fit(make: Callable[[Source], Any], message: str, parts: dict[str, Source]) -> None:
    with pytest.raises(ConfigError, match=message):
        open_source(make(parts["photos"]))


def test_weights_that_are_functions_need_not_go_to_workers(parts: dict[str, Source]) -> None:
    data = gpupipe.Mixture({"a": (parts["photos"], lambda epoch: 1 + epoch), "b": (parts["photos"], 1)}, num_samples=12)
    batches = []
    for options in ({}, {"num_workers": 1, "multiprocessing_context": "spawn"}):
        with loaded(data, 4, **options) as loader:
            batches.append([(images.clone(), labels.tolist()) for images, labels in loader])
    for (images, labels), (others, other_labels) in zip(*batches, strict=True):
        assert torch.equal(images, others)
        assert labels == other_labels
    copied = pickle.loads(pickle.dumps(open_source(data)))
    assert len(copied) == 24
    with pytest.raises(ConfigError, match="a copy of a mixture has no weights that are functions"):
        copied.usual_order(True)
    plain = pickle.loads(pickle.dumps(open_source(mixture(parts)))).usual_order(True)
    assert plain.fingerprint == open_source(mixture(parts)).usual_order(True).fingerprint


def test_fingerprints_are_of_names_and_sources_and_weights_are_the_orders(parts: dict[str, Source]) -> None:
    source = open_source(mixture(parts))
    assert source.fingerprint == open_source(mixture(parts, 1, 2, 3)).fingerprint
    names = open_source(gpupipe.Mixture({"other": (parts["photos"], 1)}))
    alone = open_source(gpupipe.Mixture({"photos": (parts["photos"], 1)}))
    assert len({source.fingerprint, names.fingerprint, alone.fingerprint, parts["photos"].fingerprint}) == 4


def test_what_is_ahead_is_told_to_each_source() -> None:
    class Told(Source):
        fields, fingerprint = gpupipe.Schema({"image": gpupipe.Image()}), "told"

        def __init__(self) -> None:
            self.told: list[Any] = []

        def __len__(self) -> int:
            return 10

        def fetch(self, indices: Any) -> Any:
            return {"image": Images([np.zeros((2, 2, 3), np.uint8)] * len(indices))}

        def ahead(self, coming: Coming) -> None:
            self.told.append((coming.indices.tolist(), coming.keep.tolist(), coming.drop.tolist(), coming.turns))

    class Quiet(Told):
        ahead = Source.ahead

    one, other = Told(), Told()
    source = MixtureSource(gpupipe.Mixture({"a": (one, 1), "b": (other, 1)}), [one, other])
    assert source.looks_ahead
    source.ahead(Coming(np.array([13, 2, 10, 4]), np.array([True, True, False, False]), np.array([11, 1]), turns=3))
    source.ahead(Coming(np.array([19]), np.array([True]), turns=4))
    assert one.told == [([2, 4], [True, False], [1], 3), ([], [], [], 4)]
    assert other.told == [([3, 0], [True, False], [1], 3), ([9], [True], [], 4)]
    assert not MixtureSource(gpupipe.Mixture({"a": (Quiet(), 1)}), [Quiet()]).looks_ahead


# What users' datasets draw.


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"engine": "dali", "num_workers": 1}], ids=str)
def test_draws_of_datasets_follow_from_the_position(options: dict[str, Any], tmp_path: Path) -> None:
    drawing = open_source(Drawing(), fields=LABELLED)
    data = {"a": (drawing, 1), "files": (named(tmp_path / "pets", "cat", "dog"), 1), "b": (drawing, 1)}

    def labels(batch_size: int, **options: Any) -> list[int]:
        with loaded(gpupipe.Mixture(data, num_samples=36), batch_size, **options) as loader:
            return [label for _, labels in loader for label in labels.tolist()]

    expected = labels(4)
    assert len(set(expected)) == 24 + 2
    assert labels(9, **options) == expected


def test_beside_the_consumer_each_dataset_is_watched_until_it_has_been_asked() -> None:
    """As in a thread that the loader has for a GPU: the second one draws, and is first asked in the second batch."""
    calm, drawing = open_source(Numbered(22, [jpeg(0)]), fields=LABELLED), open_source(Drawing(), fields=LABELLED)
    source = open_source(gpupipe.Mixture({"calm": (calm, 1), "drawing": (drawing, 1)}))
    indices = [np.arange(4), np.array([30, 1, 31, 2]), np.array([32, 33, 4, 5])]

    def run() -> list[list[int]]:
        jobs = [Job(5, 0, np.arange(4) + 4 * step, these) for step, these in enumerate(indices)]
        return [fetch(source, job).columns["label"].tolist() for job in jobs]

    expected, found = run(), []
    assert (calm.draws, drawing.draws) == (None, None)  # type: ignore[attr-defined]
    thread = threading.Thread(target=lambda: found.extend(run()), name="gpupipe-ahead")
    thread.start()
    thread.join()
    assert found == expected
