"""A folder that `gpupipe pack` has written, or has begun to write."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from gpupipe.errors import DataError

__all__ = ["PLAN_NAME", "SHARD_NAME", "check_whole"]

PLAN_NAME = ".gpupipe-pack.json"
SHARD_NAME = "shard-{:06d}.tar"


def check_whole(folder: str, shards: Sequence[str]) -> None:
    """Raise DataError where the packing into `folder` has not come to its last shard."""
    plan = Path(folder) / PLAN_NAME
    try:
        written = json.loads(plan.read_text("utf-8"))
        count = int(written.get("shards", 0))  # plans of gpupipe before it had this key can't tell
    except FileNotFoundError:  # shards of another origin
        return
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise DataError(f"{plan} can't be read ({error!r}): remove it if the shards are whole") from error
    there = {os.path.basename(shard) for shard in shards}
    missing = [name for name in map(SHARD_NAME.format, range(count)) if name not in there]
    if missing:
        raise DataError(
            f"{folder} lacks {len(missing)} of its {count} shards, the first {missing[0]}: the packing was "
            "interrupted; run the same `gpupipe pack` again to go on, or list the shards to use what is there"
        )
