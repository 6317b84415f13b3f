"""Photos for docs/concepts/cache.md; and the plan that the page shows is the one that comes out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from images import encode, picture

PAGE = Path(__file__).parents[2] / "docs/concepts/cache.md"


def setup(folder: Path, names: dict[str, Any]) -> None:
    for number in range(400):
        path = folder / f"photos/class_{number // 100}/img_{number % 100:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(picture(48, 64, seed=number)))


def check(folder: Path, names: dict[str, Any]) -> None:
    assert names["next_use"] > 3 * names["last_used"]
    text = PAGE.read_text()
    (command,) = re.findall(r"```bash\ngpupipe (.*?)```", text, re.DOTALL)
    arguments = [sys.executable, "-m", "gpupipe", *command.replace("\\\n", "").split(), "--json"]
    nodes = json.loads(subprocess.run(arguments, capture_output=True, check=True).stdout)["nodes"]
    hits = [sum(of_epoch) for of_epoch in zip(*(node["hits"] for node in nodes), strict=True)]
    shown = [float(share) for share in re.findall(r"^ \d +([\d.]+)% ", text, re.MULTILINE)]
    assert len(shown) == len(hits) == 6
    for percent, number in zip(shown, hits, strict=True):
        assert abs(percent - number / 4) < 2  # of 400; how many bytes a JPEG has depends on Pillow's release
