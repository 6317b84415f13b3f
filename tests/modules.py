"""The modules of the package, and scripts of bench/ as modules."""

import importlib.util
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

import gpupipe

LIBRARIES = {"gpupipe.integrations.lightning": "lightning", "gpupipe.integrations.timm": "timm"}

# _cpu is the library of the C++ kernels, which ctypes opens; __main__ would run.
MODULES = [
    pytest.param(module.name, marks=pytest.mark.trainers(LIBRARIES[module.name]))
    if module.name in LIBRARIES
    else module.name
    for module in pkgutil.walk_packages(gpupipe.__path__, "gpupipe.")
    if not module.name.endswith(("__main__", "kernels._cpu"))
]


def bench_script(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """A script of bench/ as the module bench_<name>, for the time of a test, as if it had been started from there."""
    bench = Path(__file__).parent.parent / "bench"
    monkeypatch.syspath_prepend(str(bench))
    spec = importlib.util.spec_from_file_location(f"bench_{name}", bench / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module
