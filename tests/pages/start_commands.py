"""What docs/start/commands.md promises."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import torch
from images import write_folder
from PIL import Image

from gpupipe.tools.cli import COMMANDS, parser

PAGE = Path(__file__).parents[2] / "docs" / "start" / "commands.md"


def setup(folder: Path, names: dict[str, Any]) -> None:
    write_folder(folder / "photos", classes=3, per_class=8)


def check(folder: Path, names: dict[str, Any]) -> None:
    page = PAGE.read_text()
    assert set(re.findall(r"^## gpupipe (\w+)$", page, re.MULTILINE)) == set(COMMANDS)
    lines = re.findall(r"^(?:\$ )?gpupipe (.*)$", page, re.MULTILINE)
    assert {line.split()[0] for line in lines} == set(COMMANDS)
    for line in lines:
        parser().parse_args(shlex.split(line))
    for shown in ("8 pictures written to sheet.png", "evaluation: on 20% of the samples", "│ samples │ 24  "):
        assert shown in page
        assert shown in names["printed"]
    assert "epoch 1 of 1: loss " in names["printed"]
    assert torch.load("checkpoint.pt", weights_only=True)["loader"]["epoch"] == 1
    with Image.open("sheet.png") as sheet:
        assert sheet.width > 100
