"""An environment for each contender that needs more than this one has.

It sees this environment's packages behind its own (torch alone takes gigabytes), so pip adds what is missing and what
has to be another version.
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

from packaging.requirements import Requirement

from gpupipe.errors import GpupipeError
from gpupipe.tools.benchmark.contenders import reference

__all__ = ["InstallError", "interpreter", "requirements", "versions"]

COMMON = ("numpy", "pillow", "torch", "torchvision")
VERSIONS = """
import importlib.metadata, json, re, sys
def plain(name): return re.sub("[-_.]+", "-", name).lower()
found = {distribution.metadata["name"]: distribution.version for distribution in reversed(list(
    importlib.metadata.distributions())) if distribution.metadata["name"]}
known = {plain(name): version for name, version in found.items()}
print(json.dumps({name: known[plain(name)] for name in sys.argv[1:] if plain(name) in known}))
"""


class InstallError(GpupipeError):
    """A contender's requirements can't be installed."""

    _page = ""  # which is no matter of the package's


def requirements(name: str) -> tuple[str, ...]:
    """The tuple `REQUIREMENTS` of a contender's file, read without importing it; empty where it has none."""
    path = Path(__file__).parent.parent / (reference(name).partition(":")[0].replace(".", "/") + ".py")
    if not path.exists():
        return ()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and [ast.unparse(one) for one in node.targets] == ["REQUIREMENTS"]:
            return tuple(ast.literal_eval(node.value))
    return ()


def interpreter(needed: tuple[str, ...], folder: Path) -> str:
    """The Python with the requirements: this one if it has them, else that of an environment in `folder`.

    The environment is made if it is not there, and again where it has other versions by now, as those that it sees here
    change. Raises InstallError, with pip's last line, if that fails.
    """
    if meets(needed, versions(sys.executable, needed)):
        return sys.executable
    key = json.dumps([needed, sys.version, sys.prefix])
    name = Requirement(needed[0]).name
    target = folder / f"{name}-{hashlib.blake2b(key.encode(), digest_size=4).hexdigest()}"
    python, complete = target / "bin" / "python", target / "complete"
    if not complete.exists() or not meets(needed, versions(str(python), needed)):
        print(f"installing {', '.join(needed)} into {target}", file=sys.stderr)
        call([sys.executable, "-m", "venv", "--clear", str(target)])
        share_packages(python)
        call([str(python), "-m", "pip", "install", "--disable-pip-version-check", *needed])
        complete.touch()
    return str(python)


def meets(needed: tuple[str, ...], found: dict[str, str]) -> bool:
    """Whether these versions are what is needed."""
    wanted = [Requirement(one) for one in needed]
    return all(one.name in found and found[one.name] in one.specifier for one in wanted)


def share_packages(python: Path) -> None:
    """Let the environment see this one's packages behind its own."""
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    lines = [f"import site; site.addsitedir({place!r})" for place in sorted(places)]
    own = call([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    (Path(own) / "zz_shared.pth").write_text("\n".join(lines) + "\n")


def versions(python: str, needed: tuple[str, ...]) -> dict[str, str]:
    """The versions that a contender runs with: its requirements' and those of the libraries that most use."""
    names = [Requirement(one).name for one in needed]
    found: dict[str, str] = json.loads(call([python, "-c", VERSIONS, *dict.fromkeys([*names, *COMMON])]))
    return found


def call(command: list[str]) -> str:
    """What the command prints. Raises InstallError with the last line of its errors."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")] or lines or ["no message"]
        raise InstallError(f"can't be installed: {errors[-1][:300]}")
    return done.stdout
