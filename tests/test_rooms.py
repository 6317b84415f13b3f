"""Dependencies between the rooms of gpupipe point one way."""

import ast
from pathlib import Path

import pytest

import gpupipe

ROOT = Path(gpupipe.__file__).resolve().parent
ORDER = ("texts", "errors", "host", "kernels", "batch", "order", "recipe", "plan", "sources", "workers", "decode")
ORDER = (*ORDER, "device", "loader", "migration", "integrations", "tools")
UNKNOWN_TO = {"workers": {"plan", "recipe", "sources"}}  # besides all later rooms: its work is none of its business


def room_of(name: str) -> str:
    """The room of a module's dotted name; of the package itself the last one of which it has names."""
    return name.split(".")[1] if name.count(".") else "integrations"


def imported(path: Path) -> set[str]:
    """Dotted names of gpupipe's modules that a file imports, in functions and for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            names = [alias.name for alias in node.names]
            rooms = [f"gpupipe.{name}" if name in ORDER else "gpupipe" for name in names]
            found |= set(rooms) if node.module == "gpupipe" else {node.module}
    return {name for name in found if name.split(".")[0] == "gpupipe"}


def files(room: str) -> list[Path]:
    """A room's files; kernels/ is a link, which is followed."""
    return [*ROOT.glob(f"{room}.py"), *(ROOT / room).rglob("*.py")]


def test_every_room_has_its_place():
    rooms = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms - {"__init__", "__main__"} == set(ORDER)
    assert all(files(room) for room in ORDER)


@pytest.mark.parametrize("room", ORDER)
def test_a_room_imports_only_rooms_before_it(room):
    known = set(ORDER[: ORDER.index(room) + 1]) - UNKNOWN_TO.get(room, set())
    wrong = []
    for path in files(room):
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
