"""Collation against torch's default_collate, its pad_sequence and its nested tensors; and moving all tensors."""

from __future__ import annotations

from collections import OrderedDict, UserDict, deque, namedtuple
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from images import encode, picture
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate
from torch.utils.data._utils.pin_memory import pin_memory

import gpupipe
from gpupipe.batch import Array, Boxes, Bytes, Field, Image, Index, Key, Mask, Pad, Points, Ragged, Scalar, Schema, Text
from gpupipe.batch.collation import collate, move
from gpupipe.errors import ConfigError, DataError

LENGTHS = (3, 0, 5, 1)


def made(field: Field, values: Any) -> Any:
    """A batch's column."""
    return collate(Schema({"image": Image(), "x": field}), {"image": (), "x": values}, 1)["x"]


def rows(*shape: int, dtype: str = "float32") -> list[np.ndarray]:
    """Of different lengths."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 100, (length, *shape)).astype(dtype) for length in LENGTHS]


def refused(field: Field, values: Any, match: str) -> None:
    with pytest.raises(DataError, match=rf"^field 'x'.*{match}"):
        made(field, values)


class TestStack:
    @pytest.mark.parametrize(
        "values",
        [
            [1, 2**40, -3],
            [0.1, 2.5],
            [True, False],
            [np.float32(0.1), np.float32(2)],
            [np.int16(3), np.int16(-4)],
            [np.array([[1, 2], [3, 4]], np.uint8), np.array([[5, 6], [7, 8]], np.uint8)],
            [np.array(1.5, np.float16), np.array(2, np.float16)],
            [np.zeros((2, 0)), np.zeros((2, 0))],
            [torch.tensor([1, 2]), torch.tensor([3, 4])],
            [np.array([1 + 2j], np.complex64), np.array([3], np.complex64)],
        ],
        ids=str,
    )
    def test_as_torch(self, values: list[Any]) -> None:
        expected = default_collate(values)
        found = made(Array(), values)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)

    def test_a_source_array(self) -> None:
        values = np.arange(12, dtype=np.int32).reshape(4, 3)
        values.flags.writeable = False
        for given in (values, values.astype(">i4"), values[::-1][::-1]):
            found = made(Array(), given)
            assert found.dtype == torch.int32
            assert found.tolist() == values.tolist()
        made(Array(), values)[0] = 7  # not the source's memory, which can't be written
        assert values[0].tolist() == [0, 1, 2]

    def test_dtype(self) -> None:
        assert made(Scalar(dtype="float32"), [1, 2.5]).dtype == torch.float32
        assert made(Scalar(dtype="float32"), np.array([1, 2])).tolist() == [1.0, 2.0]
        assert made(Array(dtype="uint8"), [[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
        assert made(Index(), np.array([4, 2])).dtype == torch.int64

    def test_ints_among_floats_whichever_is_first(self) -> None:
        for values in ([1, 2.5], [2.5, 1]):
            assert made(Scalar(), values).dtype == torch.float64

    @pytest.mark.parametrize("collate", ["stack", "ragged", "list", gpupipe.Pad()], ids=str)
    def test_integers_of_64_bits_without_a_sign(self, collate: Any) -> None:
        """Of a list NumPy makes C's unsigned long long of them, which torch.from_numpy does not take."""
        column = made(Array(collate=collate), [np.asarray([2**63]), np.asarray([2**64 - 1])])
        rows = [column[row] for row in range(2)]
        assert [row.dtype for row in rows] == [torch.uint64, torch.uint64]
        assert [row.tolist() for row in rows] == [[2**63], [2**64 - 1]]

    def test_what_does_not_fit(self) -> None:
        shapes = r"\(3, 4\) in row 0, \(2, 4\) in row 2"
        values = [np.zeros((3, 4)), np.zeros((3, 4)), np.zeros((2, 4))]
        refused(Array(), values, rf"{shapes}; pass collate='ragged', or gpupipe.Pad\(\)")
        refused(Array(), ["a", "b"], "row 0 is str, which makes no tensor; pass collate='list'")
        refused(Scalar(), [1, None], "row 1 is NoneType")
        refused(Scalar(), [1, 2**63], "no integer dtype .*: int64 in row 0, uint64 in row 1")  # NumPy: float64
        refused(Array(collate="ragged"), [[], [2**63], [1]], "all rows: uint64 in row 1, int64 in row 2")
        refused(Scalar(dtype="uint8"), [1, 300], "300")
        refused(Array(), [[1, 2], [[3], [4, 5]]], "inhomogeneous")
        refused(Text(collate="stack"), ["a"], "row 0 is str")


class TestRagged:
    @pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
    def test_as_torchs_nested_tensors(self, shape: tuple[int, ...]) -> None:
        values = rows(*shape)
        nested = torch.nested.nested_tensor([torch.from_numpy(row) for row in values], layout=torch.jagged)
        found = made(Array(collate="ragged"), values)
        assert torch.equal(found.values, nested.values())
        assert torch.equal(found.offsets, nested.offsets())
        assert found.offsets.dtype == torch.int64
        for row, value in enumerate(values):
            assert torch.equal(found[row], torch.from_numpy(value))

    def test_an_empty_list_has_no_dtype_of_its_own(self) -> None:
        found = made(Array(collate="ragged"), [np.array([]), np.array([3, 4]), np.array([])])
        assert (found.values.dtype, found.values.tolist()) == (torch.int64, [3, 4])
        found = made(Boxes(), [np.array([]), np.ones((2, 4), np.float32)])
        assert found.values.shape == (2, 4)
        assert found.values.dtype == torch.float32

    def test_without_any_row(self) -> None:
        found = made(Boxes(), [np.zeros((0, 4), np.float32)] * 3)
        assert found.values.shape == (0, 4)
        assert found.offsets.tolist() == [0] * 4

    def test_what_does_not_fit(self) -> None:
        field = Array(collate="ragged")
        refused(field, [np.ones((2, 3)), np.ones((2, 4))], r"\(2, 3\) in row 0, \(2, 4\) in row 1; pass gpupipe.Pad")
        refused(field, [1, 2], "row 0 is a single number")


class TestPad:
    @pytest.mark.parametrize("shape", [(), (4,)])
    def test_as_pad_sequence(self, shape: tuple[int, ...]) -> None:
        values = rows(*shape, dtype="int64")
        expected = pad_sequence([torch.from_numpy(row) for row in values], batch_first=True, padding_value=-1)
        assert torch.equal(made(Array(collate=Pad(-1)), values), expected)
        field = Array(collate=pad_sequence)
        assert torch.equal(made(field, values), pad_sequence([torch.from_numpy(row) for row in values]))

    def test_several_sides_to_a_multiple(self) -> None:
        images = [np.full((3, 10, 40), 1, np.uint8), np.full((3, 33, 32), 2, np.uint8)]
        found = made(Array(collate=Pad(9, multiple=32)), images)
        expected = torch.full((2, 3, 64, 64), 9, dtype=torch.uint8)
        expected[0, :, :10, :40], expected[1, :, :33, :32] = 1, 2
        assert torch.equal(found, expected)

    @pytest.mark.parametrize("field", [Array, Boxes])
    def test_a_batch_of_equal_lengths_has_the_multiple_too(self, field: type[Any]) -> None:
        shape = (5, 4) if field is Boxes else (5,)
        found = made(field(collate=Pad(multiple=8)), [np.ones(shape, np.float32)] * 2)
        assert found.shape == (2, 8, *shape[1:])

    def test_mask(self) -> None:
        schema = Schema({"x": Array(collate=Pad(multiple=4, mask=True)), "y": Scalar()})
        found = collate(schema, {"x": rows(2), "y": [1, 2, 3, 4]}, 1)
        assert list(found) == ["x", "x_mask", "y"]
        assert found["x"].shape == (4, 8, 2)
        expected = torch.zeros(4, 8, dtype=torch.bool)
        for row, length in enumerate(LENGTHS):
            expected[row, :length] = True
        assert torch.equal(found["x_mask"], expected)

    def test_what_does_not_fit(self) -> None:
        refused(Array(collate=Pad()), [np.ones(2), np.ones((2, 1))], r"\(2,\) in row 0, \(2, 1\) in row 1")
        refused(Array(collate=Pad(mask=True)), [np.ones((2, 3)), np.ones((2, 4))], r"Pad\(mask=True\)")
        for value in (0.5, -1, 256, float("inf")):
            with pytest.raises(ConfigError, match=rf"field 'x': Pad\(value={value}\) is no uint8"):
                made(Array(collate=Pad(value)), rows(dtype="uint8"))
        for dtype, value in (("float16", 70000), ("float32", -1e39)):
            with pytest.raises(ConfigError, match=rf"field 'x': Pad\(.*\) is no {dtype}"):
                made(Array(collate=Pad(value)), rows(dtype=dtype))
            assert (made(Array(collate=Pad(float("inf"))), rows(dtype=dtype)) == float("inf")).any()
        with pytest.raises(ConfigError, match="'x_mask', but a field has this name"):
            Schema({"x": Array(collate=Pad(mask=True)), "x_mask": Array()})


class TestListsAndFunctions:
    def test_strings_and_bytes(self) -> None:
        for field, values in ((Text(), ["a", "b"]), (Key(), ["k"]), (Bytes(), [b"\0", b""])):
            assert made(field, values) == values

    def test_arrays_are_tensors_and_numbers_numbers(self) -> None:
        big_endian = np.array([1, 2], ">i2")
        found = made(Array(collate="list"), [big_endian, np.float32(0.5), 3, None, np.array(["a"])])
        assert (found[0].dtype, found[0].tolist()) == (torch.int16, [1, 2])
        assert found[1:4] == [0.5, 3, None]
        assert type(found[1]) is float
        assert found[4].tolist() == ["a"]
        assert made(Array("y", "float32", collate="list"), [[1, 2]])[0].dtype == torch.float32

    @pytest.mark.parametrize("policy", ["list", list])
    def test_a_row_without_values_has_the_dtype_of_the_others(self, policy: Any) -> None:
        values = [np.zeros(0, np.int64), np.zeros((0, 2)), np.array([0.5], np.float32), np.array(3, np.int8)]
        found = made(Array(collate=policy), values)
        assert [one.dtype for one in found[:3]] == [torch.float32] * 3
        assert [one.shape for one in found[:3]] == [(0,), (0, 2), (1,)]
        assert found[3] == 3
        assert made(Array(collate=policy), values[:1])[0].dtype == torch.int64

    def test_a_function_has_the_same_list(self) -> None:
        def together(values: list[Any]) -> str:
            return "+".join(str(value.tolist()) for value in values)

        assert made(Array(collate=together), [np.array([1]), np.array([2, 3])]) == "[1]+[2, 3]"

    def test_what_a_function_raises(self) -> None:
        def stacks(values: list[torch.Tensor]) -> torch.Tensor:
            return torch.stack(values)

        refused(
            Array(collate=stacks),
            [np.ones(2), np.ones(2), np.ones(3)],
            r"stacks raised RuntimeError: .*row 0, \(3,\) in row 2",
        )


class TestBatches:
    schema = Schema(
        {
            "image": Image(),
            "mask": Mask(),
            "boxes": Boxes(labels=("classes", "areas")),
            "classes": Array(),
            "areas": Array(collate="list"),
            "points": Points(collate=Pad(mask=True)),
            "score": Scalar(),
        }
    )

    def columns(self, views: int) -> dict[str, Any]:
        """What follows a view has other rows in each."""
        pixels = {name: tuple(torch.zeros(4, 2, 2) for _ in range(views)) for name in ("image", "mask")}
        following = {"boxes": rows(4), "classes": rows(), "areas": rows(), "points": rows(2)}
        if views > 1:
            following = {
                name: tuple([value[view:] for value in values] for view in range(views))
                for name, values in following.items()
            }
        return {**pixels, **following, "score": [1.0, 2.0, 3.0, 4.0]}

    def test_labels_of_boxes_are_ragged(self) -> None:
        found = collate(self.schema, self.columns(1), 1)
        assert isinstance(found["classes"], Ragged)
        assert torch.equal(found["classes"].offsets, found["boxes"].offsets)
        assert [len(area) for area in found["areas"]] == list(LENGTHS)

    def test_pixels_pass(self) -> None:
        given = self.columns(1)
        found = collate(self.schema, given, 1)
        assert found["image"] is given["image"]
        assert found["mask"] is given["mask"]
        assert list(found) == ["image", "mask", "boxes", "classes", "areas", "points", "points_mask", "score"]

    def test_several_views(self) -> None:
        given = self.columns(2)
        found = collate(self.schema, given, 2)
        for name in ("boxes", "classes", "areas", "points", "points_mask"):
            assert type(found[name]) is tuple
            assert len(found[name]) == 2
        for view in range(2):
            alone = {name: column[view] if isinstance(column, tuple) else column for name, column in given.items()}
            expected = collate(self.schema, alone, 1)
            assert torch.equal(found["boxes"][view].values, expected["boxes"].values)
            assert torch.equal(found["classes"][view].offsets, expected["classes"].offsets)
            assert torch.equal(found["points"][view], expected["points"])
            assert torch.equal(found["points_mask"][view], expected["points_mask"])
        assert found["boxes"][0].lengths.tolist() == [3, 0, 5, 1]
        assert found["boxes"][1].lengths.tolist() == [2, 0, 4, 0]
        assert found["score"].tolist() == [1, 2, 3, 4]


Pair = namedtuple("Pair", "first second")


class Own(UserDict[str, Any]):
    """A mapping with something beside its values."""

    note = "kept"


class Pinned:
    """What pins itself, as classes of users' do."""

    def pin_memory(self) -> str:
        return "pinned"


def containers() -> dict[str, Any]:
    own = Own(a=torch.ones(1))
    own.note = "own"
    return {
        "tuple": (torch.ones(2),),
        "named": Pair(torch.ones(1), "text"),
        "list": [torch.ones(1), b"bytes", 3, None],
        "nested": {"x": [{"y": (torch.ones(1), [torch.ones(3)])}]},
        "ordered": OrderedDict(b=torch.ones(1), a=torch.ones(2)),
        "frozen": MappingProxyType({"a": torch.ones(1)}),
        "own": own,
        "deque": deque([torch.ones(1)]),
        "range": range(2),
        "array": np.ones(2),
        "text": "text",
    }


def described(value: Any) -> Any:
    """Types and values, to the ground."""
    if isinstance(value, Own):
        return type(value), value.note, described(dict(value))
    if isinstance(value, dict | MappingProxyType):
        return type(value), {key: described(one) for key, one in value.items()}
    if isinstance(value, list | tuple | deque):
        return type(value), [described(one) for one in value]
    return type(value), value.tolist() if isinstance(value, torch.Tensor | np.ndarray) else value


class TestMove:
    def test_as_torchs_pin_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor + 1)
        given = containers()
        found = move(given, torch.Tensor.pin_memory, "pin_memory")
        assert described(found) == described(pin_memory(given))
        assert described(given) == described(containers())  # which stays as it was
        assert described(found["nested"]) != described(given["nested"])

    def test_ragged(self) -> None:
        found = move((Ragged(torch.ones(3), torch.tensor([0, 1, 3])),), lambda tensor: tensor * 2)
        assert found[0].values.tolist() == [2, 2, 2]
        assert found[0].offsets.tolist() == [0, 2, 6]

    def test_what_moves_itself(self) -> None:
        one = Pinned()
        assert move([one], torch.Tensor.pin_memory, "pin_memory") == ["pinned"]
        assert move([one], lambda tensor: tensor) == [one]


ENGINES: list[dict[str, Any]] = [
    {"engine": "torch", "num_workers": 0},
    {"engine": "torch", "num_workers": 2},
    {"engine": "dali", "num_workers": 1},
]


def longest(values: list[torch.Tensor]) -> int:
    return max(map(len, values))


class Tokens:
    """Samples of many forms, whose image is always the same."""

    def __init__(self) -> None:
        self.image = encode(picture(40, 60))

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "image": self.image,
            "tokens": np.arange(index, dtype=np.int32),
            "text": f"sample {index}",
            "boxes": np.tile(np.array([[0.0, 0, 60, 40]]), (index % 3, 1)),  # so that none is dropped
            "classes": np.full(index % 3, index),
            "score": index / 2,
        }


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: f"{engine['engine']}-{engine['num_workers']}")
def test_through_the_loader(engine: dict[str, Any]) -> None:
    fields = {
        "image": Image(),
        "padded": Array("tokens", collate=Pad(-1, multiple=4, mask=True)),
        "ragged": Array("tokens", collate="ragged"),
        "list": Array("tokens", collate="list"),
        "longest": Array("tokens", collate=longest),
        "text": Text(),
        "boxes": Boxes(labels="classes"),
        "classes": Array(),
        "score": Scalar(dtype="float32"),
        "number": Index(),
    }
    recipe = gpupipe.imagenet_train(16)
    with gpupipe.Loader(Tokens(), recipe, 3, fields=fields, device="cpu", **engine) as loader:
        batches = list(loader)
    numbers = [[0, 1, 2], [3, 4, 5], [6]]
    assert [batch["number"].tolist() for batch in batches] == numbers
    for batch, indices in zip(batches, numbers, strict=True):
        assert list(batch) == [*fields, "padded_mask"]
        tokens = [torch.arange(index, dtype=torch.int32) for index in indices]
        width = -(-max(indices) // 4) * 4
        assert batch["padded"].shape == batch["padded_mask"].shape == (len(indices), width)
        assert torch.equal(batch["padded"][:, : max(indices)], pad_sequence(tokens, True, -1))
        assert batch["padded_mask"].sum(1).tolist() == indices
        assert torch.equal(batch["ragged"].values, torch.cat(tokens))
        assert batch["ragged"].lengths.tolist() == indices
        assert [row.tolist() for row in batch["list"]] == [row.tolist() for row in tokens]
        assert batch["longest"] == max(indices)
        assert batch["text"] == [f"sample {index}" for index in indices]
        assert batch["boxes"].lengths.tolist() == [index % 3 for index in indices]
        assert batch["classes"].values.tolist() == [index for index in indices for _ in range(index % 3)]
        assert batch["score"].dtype == torch.float32
        assert batch["score"].tolist() == [index / 2 for index in indices]
