"""What orders take as a list: of indices, labels, sizes or weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from images import Numbered, encode, picture
from orders import everything
from torch.utils.data import Subset, random_split

import gpupipe
from gpupipe.errors import ConfigError, DataError

LISTED = [1, 2, 3, 4, 5, 6]
KINDS: dict[str, Callable[[], Any]] = {
    "list": lambda: LISTED,
    "tuple": lambda: tuple(LISTED),
    "range": lambda: range(1, 7),
    "array": lambda: np.array(LISTED),
    "int32": lambda: np.array(LISTED, np.int32),
    "uint8": lambda: np.array(LISTED, np.uint8),
    "every second": lambda: np.repeat(LISTED, 2)[::2],
    "tensor": lambda: torch.tensor(LISTED),
    "list of tensors": lambda: list(torch.tensor(LISTED)),
    "list of numpy's": lambda: list(np.array(LISTED)),
    "keys of a dict": lambda: dict.fromkeys(LISTED).keys(),
    "generator": lambda: (value for value in LISTED),
    "map": lambda: map(int, LISTED),
}
ORDERS: dict[str, Callable[[Any], gpupipe.Order]] = {
    "Subset": gpupipe.Subset,
    "Weighted": gpupipe.Weighted,
    "balanced": gpupipe.Weighted.balanced,
    "BlockShuffled": lambda sizes: gpupipe.BlockShuffled(sizes, 2),
    "NodeBlocks": lambda sizes: gpupipe.NodeBlocks(sizes, 2, 4),
    "Stratified": lambda labels: gpupipe.Stratified(labels, 6),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_are_alike(order: str, kind: str) -> None:
    made, reference = ORDERS[order](KINDS[kind]()), ORDERS[order](LISTED)
    assert everything(made, 3, 1).tolist() == everything(reference, 3, 1).tolist()
    assert made.fingerprint == reference.fingerprint


@pytest.mark.parametrize("order", [name for name in ORDERS if name != "Weighted"])
@pytest.mark.parametrize(
    "wrong",
    [
        [True, False, True],
        np.ones(6, bool),
        torch.ones(6) > 0,
        [1.0, 2.0],
        np.arange(6.0),
        torch.arange(6.0),
        [[1, 2], [3, 4]],
        [[1, 2], [3]],
        ["1", "2"],
        "12",
        3,
        None,
        [1, 2**70],
    ],
    ids=str,
)
def test_others_are_refused(order: str, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{order}.* must (be one list of (integers|indices)|list indices)"):
        ORDERS[order](wrong)


@pytest.mark.parametrize("wrong", [["1", "2"], [[1.0], [2.0]], "12", 3, None, [1j]], ids=str)
def test_weights_are_numbers(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="Weighted: weights must be one list of"):
        gpupipe.Weighted(wrong)


def test_a_mask_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"mask of bool; pass numpy\.flatnonzero\(mask\)"):
        gpupipe.Subset(np.arange(6) > 2)


class TestRandomSplit:
    def test_is_taken_as_a_subset_without_a_read(self) -> None:
        parts = random_split(range(50), [30, 20], torch.Generator().manual_seed(1))  # type: ignore[arg-type]
        assert [everything(gpupipe.Subset(part)).tolist() for part in parts] == [list(part.indices) for part in parts]

    def test_a_part_of_a_part(self) -> None:
        class Unread(Numbered):
            def __getitem__(self, index: int) -> Any:
                raise AssertionError("an order reads no sample")

        first, _ = random_split(Unread(50, []), [30, 20], torch.Generator().manual_seed(1))  # type: ignore[arg-type]
        inner, _ = random_split(first, [0.5, 0.5], torch.Generator().manual_seed(2))
        expected = [first.indices[number] for number in inner.indices]
        assert everything(gpupipe.Subset(inner)).tolist() == expected
        assert set(expected) < set(first.indices)

    def test_what_another_dataset_calls_indices_is_its_own(self) -> None:
        class Picked(Numbered):
            indices = (8, 6, 4, 2)

        part = Subset(Picked(4, []), [3, 1])
        assert everything(gpupipe.Subset(part)).tolist() == [3, 1]

    def test_the_part_between_is_refused_as_data(self) -> None:
        whole = Numbered(8, [encode(picture(16, 16))])
        middle = Subset(whole, [3, 1, 0, 2, 7, 6, 5, 4])
        inner = Subset(middle, [0, 1, 2, 3])

        def labels(data: Any, part: Any) -> list[int]:
            order = gpupipe.VirtualEpochs(gpupipe.Subset(part), 4)
            options: dict[str, Any] = {"engine": "torch", "num_workers": 0, "device": "cpu"}
            with gpupipe.Loader(data, gpupipe.imagenet_eval(8), 4, order=order, **options) as loader:
                return [label for _, labels in loader for label in labels.tolist()]

        assert labels(whole, inner) == labels(middle, inner.indices) == labels(inner, range(4)) == [3, 1, 0, 2]
        for data in (middle, inner, gpupipe.open_source(middle)):
            with pytest.raises(
                ConfigError, match=r"Loader: .* samples of the Numbered .* gpupipe\.Subset\(part\.indices"
            ):
                labels(data, inner)
            with pytest.raises(ConfigError, match=r"Mixture: the order of 'a': .* samples of the Numbered"):
                gpupipe.Mixture({"a": (data, 1)}, orders={"a": gpupipe.Subset(inner)})


class TestSplit:
    def test_takes_a_dataset_or_its_indices(self) -> None:
        source = gpupipe.open_source(Numbered(60, [b"x"]))
        expected = [part.tolist() for part in gpupipe.split(source, (0.7, 0.3))]
        for data in (range(60), Numbered(60, [b"x"]), list(range(60)), np.arange(60), torch.arange(60)):
            assert [part.tolist() for part in gpupipe.split(data, (0.7, 0.3))] == expected
        with pytest.raises(DataError, match="labels of range are known only by reading"):
            gpupipe.split(range(60), (0.7, 0.3), stratify=True)

    @pytest.mark.parametrize("data", [["a.tar", "b.tar"], "folder", 3, iter([1, 2]), None])
    def test_refuses_what_only_names_a_dataset(self, data: Any) -> None:
        with pytest.raises(ConfigError, match=r"is no source; pass gpupipe\.open_source"):
            gpupipe.split(data, (0.7, 0.3))

    def test_fractions_of_any_kind(self) -> None:
        expected = [part.tolist() for part in gpupipe.split(range(60), (0.5, 0.25))]
        for fractions in ([0.5, 0.25], np.array([0.5, 0.25]), torch.tensor([0.5, 0.25]), iter([0.5, 0.25])):
            assert [part.tolist() for part in gpupipe.split(range(60), fractions)] == expected

    def test_parts_go_into_a_subset(self) -> None:
        train, _ = gpupipe.split(range(60), (0.7, 0.3))
        assert everything(gpupipe.Subset(train)).tolist() == train.tolist()
