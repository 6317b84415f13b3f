"""The modules of the package."""

import pkgutil

import gpupipe

# _cpu is the library of the C++ kernels, which ctypes opens; __main__ would run.
MODULES = [
    module.name
    for module in pkgutil.walk_packages(gpupipe.__path__, "gpupipe.")
    if not module.name.endswith(("__main__", "kernels._cpu"))
]
