from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tars import write_samples

import gpupipe
from gpupipe.errors import ConfigError, DataError
from gpupipe.order import split


class Named:
    """Keys and labels without images."""

    def __init__(self, keys: list[str], labels: list[int] | None = None) -> None:
        self.keys = keys
        self.targets = np.array([0] * len(keys) if labels is None else labels)

    def __len__(self) -> int:
        return len(self.keys)

    def key(self, index: int) -> str:
        return self.keys[index]


KEYS = [f"class_{number % 7}/{number}.jpg" for number in range(3000)]
LABELS = [number % 7 for number in range(3000)]


def names(source: Named, parts: list[np.ndarray]) -> list[set[str]]:
    return [{source.key(int(index)) for index in part} for part in parts]


def slow_hash(key: str, seed: int) -> int:
    digest = hashlib.blake2b(key.encode(), digest_size=8, salt=seed.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little")


@pytest.mark.parametrize("stratify", [False, True])
def test_parts_are_disjoint_and_whole(stratify: bool) -> None:
    parts = split(Named(KEYS, LABELS), (0.7, 0.2, 0.1), stratify=stratify)  # whose sum is 0.9999999999999999
    assert sorted(np.concatenate(parts).tolist()) == list(range(3000))
    for part in parts:
        assert part.dtype == np.int64
        assert (np.diff(part) > 0).all()


@pytest.mark.parametrize("stratify", [False, True])
def test_what_fractions_leave_is_left_out(stratify: bool) -> None:
    first, second = split(Named(KEYS, LABELS), (0.25, 0.25), stratify=stratify)
    assert not set(first.tolist()) & set(second.tolist())
    assert 1300 < len(first) + len(second) < 1700
    assert [len(part) for part in split(Named(KEYS, LABELS), (0.0, 1.0), stratify=stratify)] == [0, 3000]


def test_a_part_is_what_the_hash_says() -> None:
    val = split(Named(KEYS), (0.9, 0.1), seed=77)[1]
    expected = [index for index, key in enumerate(KEYS) if slow_hash(key, 77) / 2**64 >= 0.9]
    assert val.tolist() == expected
    assert stats.binomtest(len(val), 3000, 0.1).pvalue > 1e-4
    assert split(Named(KEYS), (0.9, 0.1), seed=78)[1].tolist() != expected


def test_other_samples_move_none() -> None:
    rng = np.random.default_rng(0)
    before = names(Named(KEYS), split(Named(KEYS), (0.9, 0.1)))
    more = [KEYS[place] for place in rng.permutation(3000)[:2500]] + [f"new/{number}" for number in range(500)]
    after = names(Named(more), split(Named(more), (0.9, 0.1)))
    for old, new in zip(before, after, strict=True):
        assert {key for key in new if not key.startswith("new")} == old & set(more)


def test_each_class_is_cut_exactly() -> None:
    """Against a slow reference: each class sorted by its keys' hashes and cut at the rounded sums of the fractions."""
    source = Named(KEYS, LABELS)
    parts = split(source, (0.5, 0.33, 0.1), seed=5, stratify=True)
    for label in range(7):
        own = sorted((index for index in range(3000) if LABELS[index] == label), key=lambda i: slow_hash(KEYS[i], 5))
        ends = [0] + [math.floor(sum((0.5, 0.33, 0.1)[: n + 1]) * len(own) + 0.5) for n in range(3)]
        for number, part in enumerate(parts):
            mine = [index for index in part.tolist() if LABELS[index] == label]
            assert mine == sorted(own[ends[number] : ends[number + 1]])


def test_a_new_sample_moves_at_most_one_of_its_class_over_the_cut() -> None:
    for seed in range(20):
        source = Named(KEYS[:300], LABELS[:300])
        larger = Named([*KEYS[:300], "new"], [*LABELS[:300], 3])
        before = names(source, split(source, (0.8, 0.2), seed, stratify=True))
        after = names(larger, split(larger, (0.8, 0.2), seed, stratify=True))
        moved = (before[0] ^ after[0]) - {"new"}
        assert len(moved) <= 1
        assert all(key.startswith("class_3/") for key in moved)


def test_a_key_that_comes_twice_is_refused(tmp_path: Path) -> None:
    shards = [write_samples(tmp_path / f"{number}.tar", first=0, count=2) for number in range(2)]
    with pytest.raises(DataError, match=r"samples \d and \d both have the key 's/000\d'.*pack the shards anew"):
        split(gpupipe.open_source(shards), (0.5, 0.5))


def test_takes_a_folder_and_shards(folder: Path, shards: str) -> None:
    for data in (folder, shards):
        source = gpupipe.open_source(data)
        train, val = gpupipe.split(source, (0.6, 0.4), stratify=True)
        assert np.bincount(source.targets[train]).tolist() == [3] * 5
        assert np.bincount(source.targets[val]).tolist() == [2] * 5


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    source = Named(["a\udcff", "b\udcfe"])
    assert sorted(np.concatenate(split(source, (0.5, 0.5))).tolist()) == [0, 1]


class Items:
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        raise AssertionError("a split reads no sample")


def test_a_users_dataset_is_split_by_index_and_not_by_class() -> None:
    source = gpupipe.open_source(Items())
    assert split(source, (0.5,))[0].tolist() == [i for i in range(50) if slow_hash(str(i), 0) < 2**63]
    with pytest.raises(DataError, match=r"labels of .*Items.* are known only by reading"):
        split(source, (0.5, 0.5), stratify=True)


@pytest.mark.parametrize("fractions", [(), (0.9, 0.2), (-0.1, 0.5), (float("nan"),), (1.5,)])
def test_refuses_fractions_that_do_not_cut(fractions: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="fractions"):
        split(Named(KEYS), fractions)


def test_refuses_what_is_no_source(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"pass gpupipe.open_source"):
        split(str(folder), (0.5, 0.5))
    with pytest.raises(ConfigError, match="seed=-1"):
        split(Named(KEYS), (0.5, 0.5), seed=-1)
