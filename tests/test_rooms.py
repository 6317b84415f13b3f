"""Dependencies between the rooms of gpupipe point one way."""

import ast
from pathlib import Path

import pytest

import gpupipe

ROOT = Path(gpupipe.__file__).resolve().parent
ORDER = ("errors", "host", "kernels", "batch", "order", "recipe", "plan", "sources", "workers", "decode", "device")
ORDER = (*ORDER, "loader", "trainers", "tools")
UNKNOWN_TO = {"workers": {"plan", "recipe", "sources"}}  # besides all later rooms: its work is none of its business
OF_ALL = {"__init__", "__main__"}  # the package itself, which has names of all rooms


def room_of(name: str) -> str:
    """The room of a module's dotted name."""
    return name.split(".")[1]


def imported(path: Path) -> set[str]:
    """Dotted names of gpupipe's modules that a file imports, in functions and for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            whole = [f"gpupipe.{alias.name}" for alias in node.names] if node.module == "gpupipe" else [node.module]
            found |= set(whole)
    return {name for name in found if name.startswith("gpupipe.")}


def files() -> list[Path]:
    return [path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0].removesuffix(".py") not in OF_ALL]


def test_every_room_has_its_place():
    assert {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in files()} == set(ORDER)


@pytest.mark.parametrize("room", ORDER)
def test_a_room_imports_only_rooms_before_it(room):
    known = set(ORDER[: ORDER.index(room) + 1]) - UNKNOWN_TO.get(room, set())
    wrong = []
    for path in files():
        if path.relative_to(ROOT).parts[0].removesuffix(".py") == room:
            wrong += [f"{path.relative_to(ROOT)}: {name}" for name in imported(path) if room_of(name) not in known]
    assert not wrong


def test_the_package_has_names_of_the_core_only():
    assert not [name for name in imported(ROOT / "__init__.py") if room_of(name) == "tools"]


def test_imports_are_seen_wherever_they_stand(tmp_path):
    file = tmp_path / "made.py"
    file.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gpupipe.loader import Loader\n"
        "def late():\n    import gpupipe.tools.cli\n    from gpupipe import sources\n"
    )
    assert {room_of(name) for name in imported(file)} == {"loader", "tools", "sources"}
