"""Puts results of bench/run.py into the README, in the place of its first table; prints the table.

The README has the contenders of `SHOWN`; the stored results have all of them.

python bench/readme_table.py bench/results/cpu-2-cores/peers README.md
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from peers import TITLES

from gpupipe.tools.benchmark.report import by_rate, number

SHOWN = (
    "gpupipe-torch",
    "gpupipe-dali-cpu",
    "dali-native-cpu",
    "ffcv",
    "torchvision-v2",
    "timm",
    "torchvision-pillow",
    "floor",
)


def table(results: Path) -> str:
    """The rows of both dtypes, the fastest first, the floor last; the machine and the day in the head."""
    floats, bytes_ = (json.loads((results / dtype / "results.json").read_text()) for dtype in ("float32", "uint8"))
    facts, of_uint8 = floats["environment"], {row["contender"]: row for row in bytes_["rows"]}
    settings, cpu = facts["settings"], re.sub(r"\((R|TM)\)", "", facts["cpu"])
    images = max(sum(result["opened"]["labels"].values()) for result in floats["results"] if result["opened"])
    head = (
        f"{images:,} ImageNet JPEGs, random resized crop to {settings['size']}, batches of {settings['batch_size']}, "
        f"{facts['usable_cpus']} CPUs ({cpu}), {', '.join(facts['gpus']) or 'no GPU'}, {facts['date'][:10]}"
    )
    lines = [
        f"| {head} | float32 img/s (min - max) | ratio | CPU ms | uint8 img/s (min - max) | MB |",
        6 * "|---" + "|",
    ]
    rows = [row for row in by_rate(floats["rows"]) if row["contender"] in SHOWN]
    ordered = sorted(rows, key=lambda row: row["contender"] == "floor")
    return "\n".join([*lines, *(line(row, of_uint8.get(row["contender"])) for row in ordered)]) + "\n"


def line(row: dict[str, Any], of_uint8: dict[str, Any] | None) -> str:
    """A contender's row; gpupipe's in bold, and without memory the floor, which makes no batches."""
    name, rate, ratio = row["contender"], rates(row), number(row["ratio"], 2)
    if name == "gpupipe-torch":
        rate, ratio = f"**{rate}**", f"**{ratio}**"
    cells = [TITLES.get(name, name), rate, ratio, number(row["cpu_ms_per_img"], 2), rates(of_uint8)]
    return f"| {' | '.join(cells)} | |" if name == "floor" else f"| {' | '.join(cells)} | {row['memory_mb']:,.0f} |"


def rates(row: dict[str, Any] | None) -> str:
    """Median, least and most; a dash for what was not measured."""
    if row is None or row["img_per_s"] is None:
        return "-"
    return f"{number(row['img_per_s'], 0)} ({number(row['img_per_s_min'], 0)} - {number(row['img_per_s_max'], 0)})"


if __name__ == "__main__":
    made, readme = table(Path(sys.argv[1])), Path(sys.argv[2])
    text, count = re.subn(r"^\|.*\n(\|.*\n)+", lambda old: made, readme.read_text(), count=1, flags=re.MULTILINE)
    assert count, f"{readme} has no table"
    readme.write_text(text)
    print(made, end="")
