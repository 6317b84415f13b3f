"""Kinds of fields, schemas, and columns that are taken apart and put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.batch import Array, Boxes, Bytes, Image, Index, Key, Mask, Pad, Points, Ragged, Scalar, Schema, Text
from gpupipe.batch.columns import Images, assemble, take
from gpupipe.errors import ConfigError


class TestKinds:
    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: Text(3.5), "Text: source=3.5 must be a name, or a place in a tuple"),
            (lambda: Text(True), "source=True"),
            (lambda: Text(missing="ignore"), "missing='ignore' must be one of error, skip, default"),
            (lambda: Text(default="none"), "default='none' is used with missing='default' alone"),
            (lambda: Scalar(missing="default"), "Scalar: missing='default' needs a default"),
            (lambda: Array(collate="pad"), "collate='pad' must be one of stack, ragged, list, a gpupipe.Pad or a func"),
            (lambda: Mask(folder="masks"), "folder='masks' and suffix=None go together"),
            (lambda: Image(missing="default"), "no default for an image"),
            (lambda: Image(collate="ragged"), "is not for pixels: pass 'stack', 'list' or"),
            (lambda: Mask(collate=len), "is not for pixels: pass 'stack', 'list' or"),
            (lambda: Mask(dtype="float32"), "dtype='float32' must be one of uint8"),
            (lambda: Mask(ignore=256), r"Mask: dtype='uint8', and ignore=256 must be an int in \[0, 2\*\*8\)"),
            (lambda: Mask(ignore=-1), "ignore=-1"),
            (lambda: Mask(ignore=0.5), "ignore=0.5"),  # type: ignore[arg-type]
            (lambda: Mask(dtype="int16", ignore=2**15), "dtype='int16', and ignore=32768"),
            (lambda: Mask(missing="default", default=300), "and default=300"),
            (lambda: Mask(missing="default", default=2.5), "and default=2.5"),
            (lambda: Mask(dtype="bool", ignore=255), r"Mask: dtype='bool', and ignore=255 must be an int in \[0, 2"),
            (lambda: Mask(dtype="bool", missing="default", default=2), "and default=2"),
            (lambda: Text(missing="default", default=5), "Text: default=5 is none of its kind; pass str"),
            (lambda: Bytes(missing="default", default="none"), "Bytes: default='none' .*; pass bytes"),
            (lambda: Array(collate=Pad), r"is the class; pass gpupipe.Pad\(\)"),
            (lambda: Boxes(format="yxyx"), "format='yxyx' must be one of xyxy, xywh, cxcywh"),
            (lambda: Boxes(min_area=float("nan")), "min_area=nan must be 0 or more"),
            (lambda: Points(outside="mirror"), "outside='mirror'"),
            (lambda: Array(dtype="float33"), "dtype='float33' is none of NumPy's"),
            (lambda: Pad(multiple=0), "multiple=0 must be an int of at least 1"),
            (lambda: Pad(multiple=1.5), "multiple=1.5"),
        ],
    )
    def test_refuse_what_does_not_go_together(self, make: Callable[[], Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            make()

    def test_what_stands_in_for_a_missing_value(self) -> None:
        missing: dict[str, Any] = {"missing": "default"}
        assert Text(**missing).absent == ""
        assert Bytes(**missing).absent == b""
        assert Boxes(**missing).absent.shape == (0, 4)
        assert Points(**missing).absent.shape == (0, 2)
        assert (Mask(**missing).absent, Mask(ignore=7, **missing).absent) == (255, 7)
        assert (Mask(dtype="int16", ignore=-1, **missing).absent, Mask(dtype="bool", **missing).absent) == (-1, False)
        assert Mask(dtype="bool", default=True, **missing).absent is True
        assert (Mask(default=3, **missing).absent, Scalar(default=0, **missing).absent) == (3, 0)


class TestSchemas:
    image, boxes = Image(), Boxes(labels="classes")

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({}, "must be a dict"),
            ([Image()], "must be a dict"),
            ({"image": "jpg"}, "'image' is 'jpg'; pass a name and a field"),
            ({3: Image()}, "3 is Image"),
            ({"mask": Mask()}, "'mask' is Mask, which follows an image, but there is none"),
            ({"a": Image(), "b": Image(geometry="c")}, "geometry='c', which is no image field .* there are 'a', 'b'"),
            ({"a": Image(geometry="a")}, "geometry='a'"),
            ({f"v{n}": Image() for n in range(257)}, "'v256' is the image field number 257; .* among the first 256"),
            ({"a": Image(), "b": Image(geometry="a"), "c": Mask(geometry="b")}, "'c' has geometry='b'"),
            (
                {"image": image, "boxes": boxes},
                "labels='classes', which is no field .*; add one .*'classes': gpupipe.Arr",
            ),
            ({"image": image, "boxes": Boxes(labels=("image",))}, "labels='image'"),
            ({"image": image, "boxes": boxes, "classes": Scalar()}, "labels='classes', which is no field .* filtered"),
            ({"image": image, "boxes": boxes, "classes": Text()}, "labels='classes', which is no field .* filtered"),
            (
                {"image": image, "boxes": boxes, "points": Points(labels="classes"), "classes": Array()},
                "'classes' is among the labels of 'boxes' and of 'points'",
            ),
            ({"x": Array(collate=Pad(mask=True)), "x_mask": Array()}, "'x' is padded with a mask, 'x_mask'"),
        ],
    )
    def test_refuse_names_that_lead_nowhere(self, fields: Any, words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            Schema(fields)

    def test_so_many_images_can_be_drawn_by_themselves(self) -> None:
        shared = {f"s{n}": Image(geometry="v0") for n in range(9)}
        assert Schema({f"v{n}": Image() for n in range(256)} | shared).number("v255") == 255

    def test_image_and_label_are_a_pair(self) -> None:
        assert list(Schema.of(None)) == ["image", "label"]
        assert Schema.of(None).is_pair
        assert not Schema({"label": Scalar(), "image": Image()}).is_pair
        assert not Schema({"image": Image(), "label": Text()}).is_pair
        assert not Schema({"image": Image(), "label": Scalar(), "key": Key()}).is_pair

    def test_whose_draws_a_field_has(self) -> None:
        schema = Schema(
            {
                "left": Image(),
                "right": Image(geometry="left"),
                "far": Image(),
                "mask": Mask(),
                "boxes": Boxes(geometry="far"),
            }
        )
        assert [schema.drawn_as(name) for name in schema] == ["left", "left", "far", "left", "far"]
        assert schema.images == ("left", "right", "far")
        assert [schema.number(name) for name in schema.images] == [0, 0, 2]

    def test_what_follows_a_view(self) -> None:
        schema = Schema(
            {"image": Image(), "mask": Mask(), "boxes": self.boxes, "classes": Array(), "text": Text(), "n": Index()}
        )
        assert schema.per_view(1) == {"image", "mask"}
        assert {"image", "mask", "boxes", "classes"} < schema.per_view(2)
        assert not {"text", "n"} & schema.per_view(2)

    def test_fingerprints_differ_where_batches_do(self) -> None:
        some = [
            {"image": Image(), "text": Text()},
            {"image": Image(), "text": Text("txt")},
            {"image": Image(), "words": Text()},
            {"text": Text(), "image": Image()},
            {"image": Image(), "text": Text(collate=len)},
            {"image": Image(), "text": Text(collate=sorted)},
            {"image": Image(), "text": Array(collate=Pad())},
            {"image": Image(), "text": Array(collate=Pad(1))},
        ]
        assert len({Schema(fields).fingerprint for fields in some}) == len(some)
        assert Schema(some[0]).fingerprint == Schema(dict(some[0])).fingerprint

    def test_only_the_usual_image_and_label_have_no_fingerprint(self) -> None:
        usual: list[Any] = [None, {"image": Image(), "label": Scalar()}, {"image": Image(), "label": Array()}]
        assert {Schema.of(fields).fingerprint for fields in usual} == {""}
        labels = [Scalar("json:a"), Scalar("json:b"), Array(dtype="float32"), Scalar(collate=len)]
        others = {Schema({"image": Image(), "label": label}).fingerprint for label in labels}
        assert len(others | {Schema({"image": Image("jpg"), "label": Scalar()}).fingerprint, ""}) == 6


class TestColumns:
    def columns(self) -> dict[str, Any]:
        data = [np.full(index + 1, index, np.uint8) for index in range(5)]
        return {
            "image": Images(data, np.arange(15, dtype=np.int32).reshape(5, 3)),
            "label": np.arange(5) * 10,
            "text": [f"{index}" for index in range(5)],
        }

    def test_rows_are_taken_and_put_together(self) -> None:
        whole = self.columns()
        parts = [(np.array(rows), take(whole, rows)) for rows in ([3, 0], [4], [1, 2])]
        assert [len(data) for data in parts[0][1]["image"].data] == [4, 1]
        assert parts[0][1]["image"].sizes.tolist() == [[9, 10, 11], [0, 1, 2]]
        assert (parts[0][1]["label"].tolist(), parts[0][1]["text"]) == ([30, 0], ["3", "0"])
        again = assemble(5, parts)
        assert all(one is other for one, other in zip(again["image"].data, whole["image"].data, strict=True))
        assert again["image"].sizes.tolist() == whole["image"].sizes.tolist()
        assert again["label"].tolist() == whole["label"].tolist()
        assert again["text"] == whole["text"]

    def test_rows_of_no_part_are_empty(self) -> None:
        made = assemble(4, [(np.array([2, 0]), take(self.columns(), [4, 1]))])
        assert [data is None for data in made["image"].data] == [False, True, False, True]
        assert made["image"].sizes.tolist() == [[3, 4, 5], [0, 0, 1], [12, 13, 14], [0, 0, 1]]
        assert made["label"].tolist() == [10, 0, 40, 0]
        assert made["text"] == ["1", None, "4", None]

    def test_parts_of_different_kinds_become_a_list(self) -> None:
        made = assemble(3, [(np.array([0, 2]), {"x": np.array([1, 2])}), (np.array([1]), {"x": [0.5]})])
        assert made["x"] == [1, 0.5, 2]
        views = assemble(2, [(np.array([1]), {"x": ([1], [2])}), (np.array([0]), {"x": ([3], [4])})])
        assert views["x"] == ([3, 1], [4, 2])


class TestRagged:
    ragged = Ragged(torch.arange(6.0), torch.tensor([0, 2, 2, 6]))

    def test_has_its_rows(self) -> None:
        assert len(self.ragged) == 3
        assert [row.tolist() for row in self.ragged] == [[0, 1], [], [2, 3, 4, 5]]
        assert self.ragged[-1].tolist() == [2, 3, 4, 5]
        assert self.ragged.lengths.tolist() == [2, 0, 4]
        for row in (3, -4):
            with pytest.raises(IndexError, match=f"there is no row {row}, there are 3"):
                self.ragged[row]

    @pytest.mark.parametrize("rows", [slice(1, 3), [0, 1], 1.0], ids=str)
    def test_rows_are_picked_one_by_one(self, rows: Any) -> None:
        with pytest.raises(TypeError, match=r"Ragged: rows are picked one by one, by an int, and .* is none"):
            self.ragged[rows]

    def test_goes_where_tensors_go(self) -> None:
        moved = self.ragged.to(torch.float16)
        assert (moved.values.dtype, moved.offsets.dtype) == (torch.float16, torch.int64)
        moved = self.ragged.to("meta", non_blocking=True)
        assert (moved.values.device.type, moved.offsets.device.type) == ("meta", "meta")
