"""What docs/errors.md promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from images import write_folder

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"


def setup(folder: Path, names: dict[str, Any]) -> None:
    write_folder(folder / "photos", classes=2, per_class=4)
    (folder / "photos" / "class_0").rename(folder / "photos" / "cat")


def check(folder: Path, names: dict[str, Any]) -> None:
    blocks = re.findall(r"^```python.*?^```\n\n```text\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    for text in blocks:
        assert text in names["printed"], (text, names["printed"])
    assert "stopped: 1 of the first " in names["printed"]
    assert names["printed"].rstrip().endswith("(docs/errors.md#toomanybaderror)")
