"""Several captions of a sample, of which one is drawn, and tokens that a function of the user's makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from images import encode, picture
from tars import write_tar

import gpupipe
from gpupipe.order import Shuffled
from gpupipe.plan import captions

RECIPE = gpupipe.openclip_train(16, dtype="uint8")
COUNT, BATCH, SEED = 12, 4, 9
FILES = [encode(picture(20, 24, number)) for number in range(COUNT)]
TEXTS = [[f"{number}: caption {k}" for k in range(1 + number % 5)] for number in range(COUNT)]
CAPTION = gpupipe.Text(choose=True)


def lines(number: int) -> bytes:
    return ("\n".join(TEXTS[number]) + "\n\n").encode()


def folder(root: Path) -> Any:
    for number, data in enumerate(FILES):
        (root / f"{number:02}.jpg").write_bytes(data)
        (root / f"{number:02}.txt").write_bytes(lines(number))
    return gpupipe.open_source(root, fields=fields(gpupipe.Text(folder=".", suffix=".txt", choose=True)))


def shards(root: Path) -> Any:
    members = [(f"{n:02}.{kind}", data) for n in range(COUNT) for kind, data in (("jpg", FILES[n]), ("txt", lines(n)))]
    write_tar(root / "a.tar", members)
    return gpupipe.open_source(root / "a.tar", fields=fields(gpupipe.Text("txt", choose=True)))


def documents(root: Path) -> Any:
    members = []
    for number, data in enumerate(FILES):
        document = json.dumps({"all": TEXTS[number]}).encode()
        members += [(f"{number:02}.jpg", data), (f"{number:02}.json", document)]
    write_tar(root / "a.tar", members)
    return gpupipe.open_source(root / "a.tar", fields=fields(gpupipe.Text("json:all", choose=True)))


def parquet(root: Path) -> Any:
    pq.write_table(pa.table({"image": FILES, "caption": TEXTS}), root / "a.parquet", row_group_size=5)
    return gpupipe.open_source(root / "a.parquet", fields=fields(CAPTION))


def annotations(root: Path) -> Any:
    """As COCO's captions are stored: a struct for each."""
    records = [[{"text": text, "id": 1} for text in texts] for texts in TEXTS]
    pq.write_table(pa.table({"image": FILES, "captions": records}), root / "a.parquet")
    return gpupipe.open_source(root / "a.parquet", fields=fields(gpupipe.Text("captions.text", choose=True)))


def dataset(_: Path) -> Any:
    return listed()


def listed(caption: gpupipe.Text = CAPTION, texts: Any = TEXTS) -> Any:
    data = [{"image": image, "caption": text} for image, text in zip(FILES, texts, strict=True)]
    return gpupipe.open_source(data, fields=fields(caption))


def fields(caption: gpupipe.Text) -> dict[str, gpupipe.Field]:
    return {"image": gpupipe.Image(), "caption": caption, "index": gpupipe.Index()}


def loader(source: Any, batch_size: int = BATCH, **options: Any) -> gpupipe.Loader:
    options = {"engine": "torch", "num_workers": 0, "device": "cpu", "shuffle": True, "seed": SEED} | options
    return gpupipe.Loader(source, RECIPE, batch_size, **options)


def texts_of(batches: gpupipe.Loader) -> list[str]:
    return [text for batch in batches for text in batch["caption"]]


def drawn(epoch: int, texts: list[list[str]] = TEXTS) -> list[str]:
    positions = np.arange(COUNT)
    order = Shuffled(COUNT).indices(SEED, epoch, positions)
    which = captions(SEED, epoch, positions, np.array([len(texts[index]) for index in order]))
    return [texts[index][one] for index, one in zip(order, which, strict=True)]


@pytest.mark.parametrize("make", [folder, shards, documents, parquet, annotations, dataset])
def test_a_caption_is_chosen_wherever_they_lie(make: Callable[[Path], Any], tmp_path: Path) -> None:
    source = make(tmp_path)
    gpupipe.check_source(source)
    assert source[7]["caption"].split("\n")[:3] == TEXTS[7]
    with loader(source) as batches:
        epochs = [texts_of(batches) for _ in range(3)]
    assert epochs == [drawn(epoch) for epoch in range(3)]
    assert len({one for epoch in epochs for one in epoch}) > COUNT + 3  # others in other epochs


@pytest.mark.parametrize("engine", [{"num_workers": 2}, {"engine": "dali", "num_workers": 1}], ids=["torch", "dali"])
def test_it_is_the_same_on_any_engine_number_of_ranks_and_after_a_resume(engine: dict[str, Any]) -> None:
    with loader(listed(), **engine) as batches:
        iterator = iter(batches)
        first = next(iterator)["caption"]
        state = batches.state_dict()
    with loader(listed(), **engine) as batches:
        batches.load_state_dict(state)
        assert [*first, *texts_of(batches)] == drawn(0)
    parts = []
    for rank in range(2):
        with loader(listed(), BATCH // 2, rank=rank, world_size=2) as one:
            parts.append([batch["caption"] for batch in one])
    assert [text for step in zip(*parts, strict=True) for part in step for text in part] == drawn(0)


def test_choices_are_uniform_and_each_field_has_its_own() -> None:
    counts = np.full(6000, 3)
    first, second = (captions(SEED, 0, np.arange(6000), counts, field) for field in (0, 1))
    for drawn in (first, second):
        assert (abs(np.bincount(drawn) - 2000) < 150).all()
    assert 1800 < (first == second).sum() < 2200


def test_one_text_and_none_are_what_they_are() -> None:
    source = listed(texts=["a single one", "", [], "  two words \n\n"] * 3)
    with loader(source, shuffle=False) as batches:
        assert texts_of(batches) == ["a single one", "", "", "two words"] * 3


def test_a_list_is_refused_where_none_is_chosen() -> None:
    with loader(listed(gpupipe.Text())) as batches, pytest.raises(gpupipe.SampleError, match=r"list .* is no text"):
        list(batches)


# Tokens.


def codes(texts: list[str]) -> torch.Tensor:
    """As OpenCLIP's tokenizers: int64 (N, length)."""
    assert isinstance(texts, list)
    made = torch.zeros((len(texts), 24), dtype=torch.int64)
    for row, text in enumerate(texts):
        made[row, : len(text)] = torch.tensor(list(text.encode()))
    return made


def mapping(texts: list[str]) -> dict[str, Any]:
    return {"input_ids": codes(texts).numpy().astype(np.int32), "attention_mask": None}


def lists(texts: list[str]) -> list[list[int]]:
    return [list(text.encode()) for text in texts]


@pytest.mark.parametrize("tokenizer", [codes, mapping], ids=["tensor", "mapping"])
@pytest.mark.parametrize("engine", [{"num_workers": 2}, {"engine": "dali", "num_workers": 1}], ids=["torch", "dali"])
def test_tokens_are_stacked(engine: dict[str, Any], tokenizer: Any) -> None:
    with loader(listed(gpupipe.Text(choose=True, tokenizer=tokenizer)), **engine) as batches:
        made = torch.cat([batch["caption"] for batch in batches])
    assert made.dtype == torch.int64
    assert torch.equal(made, codes(drawn(0)))


def test_rows_of_other_lengths_are_collated_by_the_fields_policy() -> None:
    texts = [["a", "bc", "def", ""][number % 4] for number in range(COUNT)]
    padded = gpupipe.Text(tokenizer=lists, collate=gpupipe.Pad(-1, mask=True))
    with loader(listed(padded, texts), shuffle=False) as batches:
        batch = next(iter(batches))
    assert batch["caption"].tolist() == [[97, -1, -1], [98, 99, -1], [100, 101, 102], [-1] * 3]
    assert batch["caption_mask"].sum(1).tolist() == [1, 2, 3, 0]
    with loader(listed(gpupipe.Text(tokenizer=lists), texts)) as batches, pytest.raises(gpupipe.DataError, match="Pad"):
        list(batches)


def fragile(texts: list[str]) -> torch.Tensor:
    if "3: caption 1" in texts:
        raise KeyError("caption")
    return codes(texts)


@pytest.mark.parametrize("engine", [{"num_workers": 2}, {"engine": "dali", "num_workers": 1}], ids=["torch", "dali"])
def test_a_text_that_the_tokenizer_raises_for_is_a_bad_sample(engine: dict[str, Any]) -> None:
    texts = [some[-1] for some in TEXTS]
    texts[3] = "3: caption 1"
    source = listed(gpupipe.Text(tokenizer=fragile), texts)
    named = r"sample 3 .*'caption': its tokenizer fragile raised KeyError: 'caption', for '3: caption 1'"
    with loader(source, **engine) as batches, pytest.raises(gpupipe.SampleError, match=named):
        list(batches)
    with loader(source, on_error="skip", shuffle=False, **engine) as batches:
        made = list(batches)
        assert [error.index for error in batches.bad_samples] == [3]
    (row,) = (row for row in range(BATCH) if made[0]["index"][row] != row)
    assert row == 3
    assert torch.equal(made[0]["caption"], codes([texts[index] for index in made[0]["index"]]))


def test_what_stands_in_for_a_text_is_the_same_whatever_was_met_before(tmp_path: Path) -> None:
    """As one of a sample's texts is bad, and which is drawn in each epoch."""

    def strict(texts: list[str]) -> torch.Tensor:
        if any("caption 1" in text for text in texts):
            raise ValueError("no such word")
        return codes(texts)

    pq.write_table(pa.table({"image": FILES, "caption": TEXTS}), tmp_path / "a.parquet")
    data = gpupipe.open_source(tmp_path / "a.parquet", fields=fields(gpupipe.Text(choose=True, tokenizer=strict)))

    def samples(*epochs: int) -> list[list[int]]:
        with loader(data, on_error="skip", max_bad=1.0) as batches:
            made = []
            for epoch in epochs:
                batches.set_epoch(epoch)
                made.append(torch.cat([batch["index"] for batch in batches]).tolist())
            return made

    assert samples(0, 1, 2, 3) == [samples(epoch)[0] for epoch in range(4)]


def longest(texts: list[str]) -> torch.Tensor:
    """As Hugging Face's tokenizers with padding=True."""
    return codes(texts)[:, : max(map(len, texts))]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_all_texts_of_a_batch_are_tokenized_at_once(workers: int) -> None:
    texts = ["a" * (1 + number % BATCH) for number in range(COUNT)]
    with loader(listed(gpupipe.Text(tokenizer=longest), texts), num_workers=workers, shuffle=False) as batches:
        made = [batch["caption"] for batch in batches]
    assert [tokens.shape for tokens in made] == [(BATCH, BATCH)] * 3
    assert torch.equal(made[0], codes(texts[:BATCH])[:, :BATCH])


def test_what_stands_in_is_tokenized_by_itself() -> None:
    texts = ["a", "bcd", "", "e"] * 3
    padded = gpupipe.Text(tokenizer=_without_empty, collate=gpupipe.Pad())
    with loader(listed(padded, texts), on_error="skip", shuffle=False, num_workers=2) as batches:
        made = next(iter(batches))
    assert made["index"].tolist() == [0, 1, 3, 3]
    assert torch.equal(made["caption"], codes(["a", "bcd", "e", "e"])[:, :3])


def _without_empty(texts: list[str]) -> torch.Tensor:
    if "" in texts:
        raise ValueError("nothing")
    return longest(texts)


@pytest.mark.parametrize(
    "tokenizer", [lambda texts: codes(texts)[:1, 0], lambda texts: [[0.5]] * len(texts)], ids=["one row", "floats"]
)
def test_what_is_no_row_of_ints_for_each_text_is_told(tokenizer: Any) -> None:
    source = listed(gpupipe.Text(tokenizer=tokenizer), [some[0] for some in TEXTS])
    with loader(source) as batches, pytest.raises(gpupipe.SampleError, match="in a list it must make as many rows of"):
        list(batches)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(gpupipe.ConfigError, match="Text: tokenizer='bert' must be a function"):
        gpupipe.Text(tokenizer="bert")  # type: ignore[arg-type]


class Tokenizer:
    """Whose text has an address."""

    def __call__(self, texts: list[str]) -> Any:
        return codes(texts)


def test_a_schemas_fingerprint_is_of_what_it_does() -> None:
    def fingerprint(text: gpupipe.Text) -> str:
        return gpupipe.Schema({"image": gpupipe.Image(), "text": text}).fingerprint

    assert fingerprint(gpupipe.Text("txt", missing="default")) == "442db8e9bc6486d4"  # of states that are older
    assert fingerprint(gpupipe.Text(tokenizer=Tokenizer())) == fingerprint(gpupipe.Text(tokenizer=Tokenizer()))
    kinds = [gpupipe.Text(), CAPTION, gpupipe.Text(tokenizer=codes), gpupipe.Text(tokenizer=Tokenizer())]
    assert len(set(map(fingerprint, kinds))) == 4
