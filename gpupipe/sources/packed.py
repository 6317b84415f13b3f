"""What `gpupipe pack` notes in the folder that it writes to: the names of its files, and the fields of its samples."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpupipe.batch import Schema
from gpupipe.batch.stored import schema_from_json
from gpupipe.errors import ConfigError, DataError
from gpupipe.host.files import read_regular

__all__ = ["AS_STORED", "FILE_NAMES", "MARKS", "MOST_PLAN_BYTES", "PLAN_NAME", "Packing", "packing_in"]

PLAN_NAME = ".gpupipe-pack.json"
MARKS = ".gpupipe-pack"
"""The folder, beside the plan, with a mark for each file that is whole."""

AS_STORED = b"gpupipe.as_stored"
"""In the metadata of Parquet that was packed: its images are as the packed source had them, and not turned upright."""

MOST_PLAN_BYTES = 1 << 20
FILE_NAMES = {
    "shards": "shard-{number:06d}.tar",
    "parquet": "part-{number:06d}.parquet",
    "huggingface": "data/train-{number:05d}-of-{count:05d}.parquet",
}


@dataclass(frozen=True)
class Packing:
    """Its files, in order; none where the plan is of before it told their number. `fields`: None: image and label."""

    files: list[str]
    fields: Schema | None

    @classmethod
    def of(cls, plan: dict[str, Any]) -> Packing:
        """Of a plan as it is stored. Raises what Python raises for another document."""
        count, name = int(plan.get("files", plan.get("shards", 0))), FILE_NAMES[plan.get("to", "shards")]
        fields = plan.get("fields")
        return cls(
            [name.format(number=number, count=count) for number in range(count)],
            None if fields is None else schema_from_json(fields),
        )

    @classmethod
    def read(cls, plan: str, data: bytes) -> Packing:
        """Of what is in the plan's file. Raises DataError where that is something else."""
        try:
            return cls.of(json.loads(data))
        except (ValueError, LookupError, AttributeError, TypeError, ConfigError) as error:
            raise DataError(f"{plan} can't be read ({error!r}): remove it if the files beside it are whole") from error

    def check(self, folder: str, there: Collection[str]) -> None:
        """Raise DataError unless all of its files are there."""
        missing = [name for name in self.files if name not in there]
        if missing:
            raise DataError(
                f"{folder} lacks {len(missing)} of its {len(self.files)} files, the first {missing[0]}: the packing "
                "was interrupted; run the same `gpupipe pack` again to go on, or list the files to use what is there"
            )


def packing_in(folder: str | os.PathLike[str]) -> Packing | None:
    """That of a folder; None where nothing was packed there.

    Raises DataError where it is not known what was, or not all of it is there.
    """
    if not os.path.isdir(folder):
        return None
    plan = Path(folder) / PLAN_NAME
    try:
        packing = Packing.read(str(plan), read_regular(plan, MOST_PLAN_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{plan} can't be read ({error!r}): remove it if the files beside it are whole") from error
    places = {os.path.dirname(name) for name in packing.files}
    packing.check(str(folder), {os.path.join(place, name) for place in places for name in _names(Path(folder, place))})
    return packing


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []
