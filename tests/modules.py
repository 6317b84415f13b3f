"""The modules of the package."""

import pkgutil

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
