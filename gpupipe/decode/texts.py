"""What becomes of texts before they are a batch's: one of several is chosen, and tokens are made of it."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Job, Schema, Text
from gpupipe.plan import captions

__all__ = ["Tokenizer", "chosen", "tokenized"]

Tokenizer = Callable[[list[str]], Any]
Tokens = NDArray[np.int64]
NONE: Tokens = np.empty(0, np.int64)


def chosen(schema: Schema, name: str, job: Job, texts: Sequence[Any]) -> list[Any]:
    """Of each text of several lines the drawn one, without those that are blank; what is no text stays."""
    several = [one for one, field in schema.items() if isinstance(field, Text) and field.choose]
    lines = [_lines(text) for text in texts]
    counts = np.array([len(some) for some in lines], np.int64)
    which = captions(job.seed, job.epoch, job.positions, counts, several.index(name))
    return [some[one] for some, one in zip(lines, which.tolist(), strict=True)]


def _lines(text: Any) -> list[Any]:
    lines = [line.strip() for line in text.splitlines() if line.strip()] if isinstance(text, str) else []
    return lines or [text]


def tokenized(
    tokenizer: Tokenizer, texts: Sequence[Any], bad: Container[int], fail: Callable[[int, str], None]
) -> list[Tokens]:
    """A row of tokens for each text, none for those that are bad; all at once, one by one where that raises, so that
    one bad text leaves the others whole."""
    rows = [row for row in range(len(texts)) if row not in bad]
    made = [NONE] * len(texts)
    try:
        for row, tokens in zip(rows, _tokens(tokenizer, [texts[row] for row in rows]), strict=True):
            made[row] = tokens
    except Exception:  # code of the user's
        for row in rows:
            try:
                (made[row],) = _tokens(tokenizer, [texts[row]])
            except Exception as error:
                called = getattr(tokenizer, "__qualname__", type(tokenizer).__name__)
                fail(
                    row,
                    f"its tokenizer {called} raised {type(error).__name__}: {error}, for {reprlib.repr(texts[row])}",
                )
    return made


def _tokens(tokenizer: Tokenizer, texts: list[str]) -> list[Tokens]:
    """Raises ValueError for what is no row of ints for each."""
    if not texts:
        return []
    made = tokenizer(texts)
    if isinstance(made, Mapping):
        made = made["input_ids"]
    rows = [np.asarray(row) for row in made]
    if len(rows) != len(texts) or any(row.ndim != 1 or (row.size and row.dtype.kind not in "iu") for row in rows):
        forms = ", ".join(dict.fromkeys(f"{row.dtype} {row.shape}" for row in rows[:4]))
        raise ValueError(
            f"of {len(texts)} texts in a list it must make as many rows of ints, and made {len(rows)}: {forms}"
        )
    return [row.astype(np.int64) for row in rows]
